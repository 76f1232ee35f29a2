// The doors that there are.
#pragma once

#include "door.h"

namespace invar::server::doors {

inline constexpr Door kFixed = {.name = "fixed",
                                .body = Door::Body::small,
                                .read_while_serving = true,
                                .takes_slots = false,
                                .place = "none: as much work whatever is asked",
                                .memory = "its reply"};
inline constexpr Door kAdapter = {
    .name = "adapter",
    .body = Door::Body::small,
    .read_while_serving = true,
    .takes_slots = false,
    .place = "at most 512 of one key wait for the pool",
    .memory = "a name and a path; at most 16384 adapters, of which `--max-loras` are loaded"};
inline constexpr Door kChange = {
    .name = "change",
    .body = Door::Body::small,
    .read_while_serving = true,
    .takes_slots = false,
    .place = "one change of the engine at a time; the next is refused (409)",
    .memory = "its reply"};
inline constexpr Door kWeights = {
    .name = "weights",
    .body = Door::Body::whole,
    .read_while_serving = false,
    .takes_slots = false,
    .place =
        "one change of the engine at a time; the next is refused (409); at most 512 of one key "
        "wait for the pool",
    .memory =
        "its body, until it is in a file; of all of an update `--max-update-gib` on the disk"};
inline constexpr Door kRefused = {.name = "refused",
                                  .body = Door::Body::whole,
                                  .read_while_serving = false,
                                  .takes_slots = false,
                                  .place = "none: it is answered by a sentence",
                                  .memory = "its body, which nobody reads"};
inline constexpr Door kAnswer = {
    .name = "answer",
    .body = Door::Body::whole,
    .read_while_serving = false,
    .takes_slots = true,
    .place = "a place for each choice of each prompt, ranked by key",
    .memory = "its prompts and parameters, before they are kept (`--max-queued-mib`)"};
inline constexpr Door kEmbedding = {
    .name = "embedding",
    .body = Door::Body::whole,
    .read_while_serving = false,
    .takes_slots = true,
    .place = "a place for each text, 32 at most, ranked by key",
    .memory = "its texts, vectors and answer, before it is computed (`--max-queued-mib`)"};
inline constexpr Door kScore = {
    .name = "score",
    .body = Door::Body::whole,
    .read_while_serving = false,
    .takes_slots = true,
    .place =
        "a place for each token or text that is computed at the same time, 32 at most, ranked "
        "by key",
    .memory = "its prompts and answer, before it is computed (`--max-queued-mib`)"};
inline constexpr Door kTokens = {
    .name = "tokens",
    .body = Door::Body::tokens,
    .read_while_serving = false,
    .takes_slots = false,
    .place = "at most 512 of one key wait for the pool",
    .memory = "32 bytes for each byte of the body, until it is answered (`--max-queued-mib`)"};
inline constexpr Door kKept = {
    .name = "kept answer",
    .body = Door::Body::small,
    .read_while_serving = false,
    .takes_slots = false,
    .place = "at most 512 of one key wait for the pool; then those of an answer",
    .memory = "what the journal has of it, one at a time on each thread of the pool"};
inline constexpr Door kLine = {
    .name = "kept line",
    .body = Door::Body::small,
    .read_while_serving = false,
    .takes_slots = false,
    .place = "at most 512 of one key wait for the pool",
    .memory = "what the journal has of it, one at a time on each thread of the pool"};
inline constexpr Door kFile = {
    .name = "file",
    .body = Door::Body::whole,
    .read_while_serving = false,
    .takes_slots = false,
    .place = "at most 512 of one key wait for the pool",
    .memory = "three times its body, until it is written (`--max-queued-mib`)"};
inline constexpr Door kBatch = {
    .name = "batch",
    .body = Door::Body::small,
    .read_while_serving = false,
    .takes_slots = false,
    .place =
        "16 unfinished ones of one key; 16 requests of all batches at a time, each with the "
        "place of an answer",
    .memory = "its file, one at a time on the pool"};

}  // namespace invar::server::doors
