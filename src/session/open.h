// The files of a model's directory beside the weights: its tokenizer, its chat template, and the
// tokens that end an answer.
#pragma once

#include <future>
#include <string>
#include <vector>

#include "engine/model.h"
#include "frontend/chat_template.h"
#include "frontend/questions.h"
#include "sampling/params.h"
#include "tokenizer/tokenizer.h"

namespace invar {

// The tokenizer of the model's directory; for made weights one of the vocabulary's size.
Tokenizer open_tokenizer(const ModelOptions& options);
inline Tokenizer open_tokenizer(const Model& model) {
  return open_tokenizer(model.options());
}
// The same on a thread of its own, while the caller opens the model: a vocabulary takes some tenths
// of a second.
std::future<Tokenizer> open_tokenizer_beside(const ModelOptions& options);
// Its chat template, or the one of `file` where one is named.
ChatTemplate open_chat_template(const ModelOptions& options, const std::string& file = {});
inline ChatTemplate open_chat_template(const Model& model, const std::string& file = {}) {
  return open_chat_template(model.options(), file);
}
// The sampling parameters that requests leave open (session/sampling_defaults.h).
SamplingParams open_sampling_defaults(const ModelOptions& options);
// A model's files say how vectors and relevance are made.
NumberForm open_number_form(const ModelOptions& options);
// The tokens that end an answer, ascending: those of both configurations, and of a directory those
// that only its tokenizer names, its end of sequence and special tokens that end a turn.
std::vector<int32_t> end_tokens(const Model& model, const Tokenizer& tokenizer);
// They join the stop tokens, unless they are to be ignored.
void add_end_tokens(SamplingParams& params, const Model& model, const Tokenizer& tokenizer);

// The model that Invar brings along: "models/story" of the directory that INVAR_HOME names, else of
// the repository or the installation that this program stands in. Throws UsageError without one: a
// program that was copied away from its models has nothing to answer with.
std::string bundled_model();
// A drafter's directory. "models/eagle3" and "models/draft" are found there, too, wherever the
// program is called from. Any other name stays as it is.
std::string found_drafter(const std::string& name);

}  // namespace invar
