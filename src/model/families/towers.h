// Models that read images, too: the part that reads text is of a family.
#pragma once

#include <optional>

#include "base/json.h"

namespace invar {

// The text's part of such a model's config.json, as a configuration of its family; nothing for a
// model of text alone.
std::optional<json::Value> tower_text_config(const json::Value& config);

}  // namespace invar
