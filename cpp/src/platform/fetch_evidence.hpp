// The processors on which projections of one or two rows prefetch their weights, by measurement.
#pragma once

#include "platform/processor.hpp"

namespace mha {

/// ProjectionTile::fetches_ahead on this processor. docs/decisions/0003 has the measurements.
bool fetches_few_rows_ahead();
/// The same on any processor.
bool fetches_few_rows_ahead_on(const Processor& processor);

}  // namespace mha
