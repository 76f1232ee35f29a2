// Keys of config.json that change no logit, whatever the family.
#pragma once

#include "model/families/config_reader.h"

namespace invar {

// Takes the keys that cannot change a logit, whatever their values are.
void ignore_harmless(ConfigReader& reader);
// Throws Error naming a key that changes the arithmetic by its value, unless the family has read
// it.
void check_neutral_keys(ConfigReader& reader);

}  // namespace invar
