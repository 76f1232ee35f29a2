// The fields of a Request that an engine in another process needs, in the order of its messages,
// and those that bodies and libraries have under one name. A new field of an answer is a member of
// Request, a row here, a member of GenerateOptions (include/invar/invar.h), and the code that it
// changes.
#pragma once

#include "base/field_list.h"
#include "engine/request.h"
#include "sampling/param_list.h"

namespace invar {

template <>
inline constexpr std::tuple kFieldsOf<Request>{
    Field("id", &Request::id, {.in_body = false}),
    Field("prompt", &Request::prompt, {.in_body = false}),
    Field("params", &Request::params, {.in_body = false}),
    Field("params_are_checked", &Request::params_are_checked, {.in_body = false}),
    Field("choice", &Request::choice, {.in_body = false}),
    Field("structured_outputs", &Request::structured_output, {.in_body = false}),
    Field("cache_salt", &Request::cache_salt),
    Field("adapter", &Request::adapter, {.in_body = false}),
    Field("logits_hash", &Request::hash_logits, {.in_body = false}),
    Field("priority", &Request::priority),
    Field("pooled", &Request::pooled, {.in_body = false}),
    Field("return_routed_experts", &Request::routed_experts),
    Field("prediction", &Request::prediction, {.in_body = false}),
    Field("begun", &Request::begun, {.in_body = false}),
    Field("begun_hash", &Request::begun_hash, {.in_body = false}),
    Field("include_stop_str_in_output", &Request::include_stop, {.crosses = false}),
    Field("skip_special_tokens", &Request::skip_special, {.crosses = false}),
};

}  // namespace invar
