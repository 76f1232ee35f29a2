// How the hidden states of a text become one vector, as a directory of an embedding model says it:
// the files of sentence-transformers, modules.json and those it names.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"

namespace invar {

struct Pooling {
  enum class Kind : uint8_t { mean, last, first };
  Kind kind = Kind::mean;      // of all the text's tokens, or the hidden state of one of them
  bool final_norm = false;     // hidden states behind the model's final norm, not before it
  bool is_normalized = false;  // the vector, cut or not, has length 1

  bool operator==(const Pooling&) const = default;
};

// Of a model's directory; one that says nothing has the default. Throws Error where a module or a
// kind of pooling is not implemented.
Pooling read_pooling(const std::string& directory);

json::Value to_json(const Pooling& pooling);

}  // namespace invar
