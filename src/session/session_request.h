// From the structs of include/invar/invar.h to those of the engine and back.
#pragma once

#include <invar/invar.h>

#include "frontend/text_engine.h"
#include "session/engine_loop.h"
#include "session/instance.h"
#include "session/weight_change.h"

// Between the library's own files: not to be seen from outside.
#pragma GCC visibility push(hidden)

namespace invar {

InstanceOptions instance_options(const SessionOptions& options);

// All but the prompt, the model's ends of sequence, the constraint and a length that was not said.
Request request_of(const GenerateOptions& options, const Tokenizer& tokenizer);

GeneratedToken shown(const AnswerEvent& event, size_t prompt = 0);
Generation shown(TextAnswer answer);
// `so_far`, of an answer that may be cancelled, takes the event's token.
void add_token(Generation& so_far, const AnswerEvent& event);

// The caller's tensor. Throws UsageError for a type that is none of weights.
GivenTensor given(const Tensor& tensor);
// The tensor of the checkpoint that `info` describes, without data.
Tensor described(const std::string& name, const TensorInfo& info);

}  // namespace invar

#pragma GCC visibility pop
