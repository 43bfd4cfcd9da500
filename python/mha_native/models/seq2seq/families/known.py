"""The families that there are, by the name that config.json has for them."""

from . import bart, mbart, t5

# A family is a module beside this one and an entry here; all that is read by it follows.
FAMILIES = {
    model_type: family for family in (bart.FAMILY, mbart.FAMILY, t5.FAMILY) for model_type in family.model_types
}
