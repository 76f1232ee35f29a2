// How the hidden states of a text become one vector, as a directory of an embedding model says it:
// the files of sentence-transformers, modules.json and those it names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/dense_module.h"

namespace invar {

struct Pooling {
  enum class Kind : uint8_t { mean, last, first };
  Kind kind = Kind::mean;   // of all the text's tokens, or the hidden state of one of them
  bool final_norm = false;  // hidden states behind the model's final norm, not before it
  std::vector<DenseModule> dense = {};  // behind the pooling, in turn
  bool is_normalized = false;           // the vector, cut or not, has length 1

  // Numbers of a vector, where hidden states have so many.
  int64_t outputs(int64_t hidden) const { return dense.empty() ? hidden : dense.back().outputs; }

  bool operator==(const Pooling&) const = default;
};

// Reads the pooling of a model's directory with hidden states of `hidden` numbers; a directory that
// says nothing has the default. Throws Error where a module or a kind of pooling is not
// implemented.
Pooling read_pooling(const std::string& directory, int64_t hidden);

json::Value to_json(const Pooling& pooling);

}  // namespace invar
