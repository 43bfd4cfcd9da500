"""The families that there are, by the name that config.json has for them."""

from . import bart, marian, mbart, pegasus, t5

# A family is a module beside this one and an entry here; all that is read by it follows.
_FAMILIES = (bart.FAMILY, marian.FAMILY, mbart.FAMILY, pegasus.FAMILY, t5.FAMILY)
FAMILIES = {model_type: family for family in _FAMILIES for model_type in family.model_types}
