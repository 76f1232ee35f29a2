// Bounds of a request, field by field. docs/requests.md and docs/openapi.yaml say the same.
#pragma once

#include <cstddef>

namespace invar::openai {

// A field that OpenAI limits has that limit or, where vLLM's clients need more, a greater one.
inline constexpr size_t kMaxStops = 64, kMaxStopBytes = 1 << 10;
inline constexpr size_t kMaxStopTokenIds = 4096;
inline constexpr size_t kMaxBadWords = 1024, kMaxBadWordsBytes = 16 << 10;  // all words together
inline constexpr size_t kMaxSaltBytes = 1 << 10;
inline constexpr size_t kMaxPrompts = 2048;
inline constexpr size_t kMaxTextBytes = 4 << 20;  // of a conversation or a prompt that is cut
inline constexpr size_t kMaxFields = 1024;        // of a body
inline constexpr size_t kMaxTools = 128;
inline constexpr size_t kMaxTemplateVariablesBytes = 64 << 10;
inline constexpr size_t kMaxChoices = 4096, kMaxFormBytes = 256 << 10, kMaxRegexBytes = 16 << 10;
inline constexpr size_t kMaxIdempotencyKeyBytes = 256;

}  // namespace invar::openai
