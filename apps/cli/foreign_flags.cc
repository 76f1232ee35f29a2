#include "foreign_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace invar::cli {

namespace {

struct ForeignFlag {
  const char* name;
  const char* reason;
};

constexpr ForeignFlag kForeignFlags[] = {
    {"--dtype", "the weights' own type is computed with; --weights rounded makes f32 bf16"},
    {"--quantization",
     "config.json says how a directory's weights are quantized; --weights fp8-row makes bf16 ones "
     "FP8"},
    {"--calculate-kv-scales", "keys and values have the arithmetic's own type and no scales"},
    {"--tokenizer", "the tokenizer is the model's own; anything else changes its answers"},
    {"--tokenizer-mode", "there is one tokenizer, made from the model's own files"},
    {"--skip-tokenizer-init",
     "text needs a tokenizer; token ids go in as \"prompt\" and come out with return_token_ids"},
    {"--trust-remote-code", "no code of a model is run"},
    {"--revision", "a server downloads nothing: invar pull OWNER/NAME@REVISION fetches a model"},
    {"--code-revision", "no code of a model is run"},
    {"--tokenizer-revision", "the tokenizer is the model's own"},
    {"--download-dir",
     "a server downloads nothing: invar pull OWNER/NAME@REVISION fetches a model"},
    {"--hf-token", "a server downloads nothing: invar pull OWNER/NAME@REVISION fetches a model"},
    {"--hf-config-path", "config.json of MODEL is what the model is"},
    {"--hf-overrides", "config.json is what the model is; edit it"},
    {"--config-format", "MODEL is a Hugging Face directory"},
    {"--model-loader-extra-config", "safetensors are read in one way"},
    {"--ignore-patterns",
     "a server downloads nothing: invar pull OWNER/NAME@REVISION fetches a model"},
    {"--runner", "there is one runner: it completes text and embeds it"},
    {"--task", "there is one task: completing text and embedding it"},
    {"--convert", "a model is served as what it is"},
    {"--rope-scaling", "config.json is what the model is; edit it"},
    {"--rope-theta", "config.json is what the model is; edit it"},
    {"--disable-sliding-window", "config.json is what the model is; edit it"},
    {"--limit-mm-per-prompt", "only text is understood"},
    {"--mm-processor-kwargs", "only text is understood"},
    {"--language-model-only", "only text is understood anyway"},
    {"--enable-prompt-embeds", "prompts are text or token ids"},
    {"--logits-processors", "no code from outside runs between logits and tokens"},
    {"--speculative-model", "it is called --spec-model"},
    {"--num-speculative-tokens", "it is called --spec-tokens"},
    {"--speculative-disable-by-batch-size",
     "it is \"disable_by_batch_size\" in --speculative-config"},
    {"--ngram-prompt-lookup-max", "it is \"prompt_lookup_max\" in --speculative-config"},
    {"--ngram-prompt-lookup-min", "it is \"prompt_lookup_min\" in --speculative-config"},
    {"--gpu-memory-utilization", "use --kv-cache-memory, in GiB; 0 takes what is free"},
    {"--kv-cache-memory-bytes", "it is called --kv-cache-memory, in GiB"},
    {"--num-gpu-blocks-override", "use --kv-cache-memory, in GiB"},
    {"--swap-space", "preempted sequences are computed again, with the same bits"},
    {"--cpu-offload-gb", "weights lie where they are computed with"},
    {"--kv-transfer-config", "keys and values stay in their process"},
    {"--prefix-caching-hash-algo",
     "blocks are found by their tokens, not by a hash that could collide"},
    {"--enable-chunked-prefill", "long prompts are always computed in chunks, with the same bits"},
    {"--max-num-partial-prefills", "--scheduling-policy decides"},
    {"--long-prefill-token-threshold", "--max-num-batched-tokens bounds every step"},
    {"--num-scheduler-steps", "each step is scheduled"},
    {"--scheduler-cls", "it is called --scheduling-policy"},
    {"--stream-interval", "each token is an event"},
    {"--seed", "each request has its own seed, given or drawn and returned"},
    {"--enforce-eager", "nothing is compiled when the server starts"},
    {"--compilation-config", "nothing is compiled when the server starts"},
    {"--cuda-graph-sizes", "nothing is compiled when the server starts"},
    {"--attention-backend", "the arithmetic is --arith; who computes it does not change the bits"},
    {"--disable-cascade-attn", "the order of every sum is fixed by --arith"},
    {"--disable-custom-all-reduce", "the order of every sum is fixed by --arith"},
    {"--data-parallel-backend", "replicas are processes of one host"},
    {"--data-parallel-address", "replicas are processes of one host"},
    {"--data-parallel-size-local", "replicas are processes of one host"},
    {"--data-parallel-rank", "the server routes between its replicas"},
    {"--enable-eplb", "experts stay where they are; where they are changes no bit"},
    {"--all2all-backend", "there is one way between ranks"},
    {"--decode-context-parallel-size", "a sequence's keys lie with one rank"},
    {"--worker-cls", "no code from outside is run"},
    {"--worker-extension-cls", "no code from outside is run"},
    {"--api-server-count", "one thread moves all bytes; see --max-connections"},
    {"--headless", "a server without a front has nobody to answer"},
    {"--uds", "the server listens on --host and --port"},
    {"--root-path", "paths are fixed; a proxy may rewrite them"},
    {"--middleware", "no code from outside is run"},
    {"--allow-credentials", "keys come in the Authorization header, never as cookies"},
    {"--allowed-methods", "each path allows its own methods"},
    {"--allowed-headers", "every header may be sent"},
    {"--ssl-ca-certs", "clients show a key (--api-key), not a certificate"},
    {"--ssl-cert-reqs", "clients show a key (--api-key), not a certificate"},
    {"--enable-ssl-refresh", "restart the server; with --journal its answers go on"},
    {"--h11-max-incomplete-event-size", "a request's header has at most 64 KiB"},
    {"--h11-max-header-count", "a request's header has at most 256 lines"},
    {"--response-role", "answers are the assistant's"},
    {"--chat-template-content-format",
     "the template gets the content as the request has it, parts of text joined"},
    {"--enable-auto-tool-choice", "tool_choice auto is always there"},
    {"--tool-parser-plugin", "no code from outside is run"},
    {"--guided-decoding-backend", "there is one, docs/requests.md says what it understands"},
    {"--structured-outputs-config", "docs/requests.md says which schemas are understood"},
    {"--return-tokens-as-token-ids", "requests ask with return_tokens_as_token_ids"},
    {"--enable-prompt-tokens-details",
     "/metrics counts cached tokens; an answer's bytes do not depend on them"},
    {"--enable-force-include-usage", "requests ask with stream_options.include_usage"},
    {"--enable-request-id-headers", "the answer's id is in its body"},
    {"--enable-log-requests", "--journal keeps each request"},
    {"--disable-log-requests", "requests are not logged; --journal keeps them"},
    {"--max-log-len", "requests are not logged; --journal keeps them"},
    {"--log-config-file", "warnings go to the error stream"},
    {"--disable-log-stats", "there are no periodic lines; /metrics has the numbers"},
    {"--uvicorn-log-level", "requests are not logged; /metrics counts them"},
    {"--disable-uvicorn-access-log", "requests are not logged; /metrics counts them"},
    {"--disable-fastapi-docs", "/docs is a page of the program, without FastAPI"},
    {"--disable-frontend-multiprocessing",
     "the front and the engine share a process unless --engine-process"},
    {"--enable-server-load-tracking", "/metrics has the load"},
    {"--otlp-traces-endpoint", "/metrics has the numbers"},
    {"--config", "flags are given on the command line"},
    // llama.cpp
    {"--max-tokens", "requests say max_tokens"},
    {"--prompt", "requests have the prompt; invar generate takes one"},
    {"--system", "requests have the system message; invar chat takes one"},
    {"--cache-type-k", "use --kv-cache-dtype: auto (bf16), int8 or fp8_e4m3"},
    {"--cache-type-v", "use --kv-cache-dtype: auto (bf16), int8 or fp8_e4m3"},
    {"--split-mode", "use --tensor-parallel-size or --pipeline-parallel-size"},
    {"--tensor-split", "ranks have equal shares: use --tensor-parallel-size"},
    {"--main-gpu", "use --device cuda:N"},
    {"--override-tensor", "weights lie where they are computed with"},
    {"--n-cpu-moe", "weights lie where they are computed with"},
    {"--cpu-moe", "weights lie where they are computed with"},
    {"--model-draft", "it is called --spec-model"},
    {"--draft-max", "it is called --spec-tokens"},
    {"--timeout", "use --write-timeout, --body-timeout or --request-timeout"},
    {"--api-key-file", "keys are given with --api-key or in INVAR_API_KEY"},
    {"--reasoning-format", "use --reasoning-parser; none leaves thoughts in the text"},
    {"--reasoning-budget", "requests say thinking_token_budget"},
    {"--rope-scale", "config.json is what the model is; edit it"},
    {"--rope-freq-base", "config.json is what the model is; edit it"},
    {"--rope-freq-scale", "config.json is what the model is; edit it"},
    {"--mmproj", "only text is understood"},
    {"--lora", "use --lora-modules NAME=PATH, of a GGUF file or a directory as PEFT writes it"},
    {"--control-vector", "weights are computed with as they are"},
    {"--samplers", "filters have one order (docs/requests.md)"},
    {"--grammar", "requests say guided_grammar, or grammar at /completion"},
    {"--no-webui", "the page at / is part of the server; a proxy may hide it"},
    {"--slot-save-path", "keys and values stay in memory; the journal keeps requests"},
};

// Flags that ask for what is so anyway: with no value, or one of these, separated by '|'; "*": any.
struct TakenFlag {
  const char* name;
  const char* values;
  const char* reason;
};

constexpr TakenFlag kTakenFlags[] = {
    {"--dtype", "auto", "the weights' own type is computed with"},
    {"--tokenizer-mode", "auto", "the tokenizer is the model's own"},
    {"--runner", "auto|generate|pooling", "there is one runner"},
    {"--task", "auto|generate|embed", "there is one task: completing text and embedding it"},
    {"--quantization", "none|gguf|auto", "weights are computed with as they are stored"},
    {"--enforce-eager", "", "nothing is compiled when the server starts"},
    {"--trust-remote-code", "", "no code of a model is run"},
    {"--enable-auto-tool-choice", "", "tool_choice auto is always there"},
    {"--enable-chunked-prefill", "true", "long prompts are computed in chunks, with the same bits"},
    {"--disable-log-requests", "", "requests are not logged"},
    {"--no-enable-log-requests", "", "requests are not logged"},
    {"--disable-log-stats", "", "there are no periodic lines; /metrics has the numbers"},
    {"--uvicorn-log-level", "*", "requests are not logged"},
    {"--disable-uvicorn-access-log", "", "requests are not logged"},
    {"--enable-server-load-tracking", "", "/load and /metrics have the load"},
    {"--guided-decoding-backend", "auto|xgrammar|guidance|outlines", "there is one"},
    // llama.cpp
    {"--jinja", "", "chat templates are always Jinja's"},
    {"--flash-attn", "on|auto|1", "attention is computed in one order, with the same bits"},
    {"--cont-batching", "", "requests are always computed together"},
    {"--batch-size", "*", "--max-num-batched-tokens bounds every step"},
    {"--metrics", "", "/metrics is always there"},
    {"--slots", "", "/slots is always there"},
    {"--props", "", "/props is always there, to be read"},
    {"--embedding", "", "/v1/embeddings is always there"},
    {"--embeddings", "", "/v1/embeddings is always there"},
    {"--rerank", "", "/v1/rerank is always there"},
    {"--reranking", "", "/v1/rerank is always there"},
    {"--mlock", "", "weights are read into memory"},
    {"--no-mmap", "", "weights are read into memory"},
    {"--warmup", "", "there is nothing to warm"},
    {"--no-warmup", "", "there is nothing to warm"},
    {"--verbose", "", "warnings go to the error stream"},
};

bool is_taken(const TakenFlag& flag, const std::vector<std::string>& values) {
  std::string_view all = flag.values;
  if (values.empty() || values[0].empty() || values[0] == "true" || all == "*") return true;
  while (!all.empty()) {
    const size_t end = std::min(all.find('|'), all.size());
    if (all.substr(0, end) == values[0]) return true;
    all.remove_prefix(std::min(end + 1, all.size()));
  }
  return false;
}

[[noreturn]] void refuse(const char* name, const char* reason) {
  fail_usage("{} is not a flag of invar serve: {}", name, reason);
}

// A flag that is taken says on the error stream why it changes nothing; with a value that asks for
// more it is refused.
void take(const TakenFlag& flag, const std::vector<std::string>& values) {
  if (is_taken(flag, values)) {
    fmt::print(stderr, "{} changes nothing: {}\n", flag.name, flag.reason);
    return;
  }
  const auto* foreign = std::ranges::find_if(kForeignFlags, [&](const ForeignFlag& one) {
    return one.name == std::string_view(flag.name);
  });
  refuse(flag.name, foreign == std::end(kForeignFlags) ? flag.reason : foreign->reason);
}

}  // namespace

void refuse_foreign_flags(CLI::App& command) {
  const auto add = [&](const char* name, auto then) {
    command.add_option_function<std::vector<std::string>>(name, then)->expected(0, 1)->group("");
  };
  for (const TakenFlag& flag : kTakenFlags)
    add(flag.name, [flag](const std::vector<std::string>& values) { take(flag, values); });
  for (const ForeignFlag& flag : kForeignFlags) {
    const bool is_taken = std::ranges::any_of(
        kTakenFlags, [&](const TakenFlag& one) { return one.name == std::string_view(flag.name); });
    if (!is_taken)
      add(flag.name, [flag](const std::vector<std::string>&) { refuse(flag.name, flag.reason); });
  }
}

}  // namespace invar::cli
