#include "llama_flags.h"

#include <algorithm>
#include <string_view>

namespace invar::cli {

namespace {

struct Renamed {
  std::string_view from, to;  // to nothing: what follows stands alone
};

constexpr Renamed kRenamed[] = {
    {"-m", ""},
    {"--model", ""},
    {"-hf", ""},
    {"-hfr", ""},
    {"--hf-repo", ""},
    {"-c", "--max-model-len"},
    {"--ctx-size", "--max-model-len"},
    {"-a", "--served-model-name"},
    {"--alias", "--served-model-name"},
    {"-t", "--threads"},
    {"-np", "--max-num-seqs"},
    {"--parallel", "--max-num-seqs"},
    {"-ub", "--max-num-batched-tokens"},
    {"--ubatch-size", "--max-num-batched-tokens"},
    {"-ngl", "--gpu-layers"},
    {"--n-gpu-layers", "--gpu-layers"},
    {"--temp", "--temperature"},
    {"--repeat-penalty", "--repetition-penalty"},
    {"--predict", "--max-tokens"},
    {"--n-predict", "--max-tokens"},
    {"-s", "--seed"},
    {"-sys", "--system"},
    {"--system-prompt", "--system"},
    {"-fa", "--flash-attn"},
    {"-cb", "--cont-batching"},
    {"-b", "--batch-size"},
    {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},
    {"-sm", "--split-mode"},
    {"-ts", "--tensor-split"},
    {"-mg", "--main-gpu"},
    {"-ot", "--override-tensor"},
    {"-ncmoe", "--n-cpu-moe"},
    {"-to", "--timeout"},
    {"-md", "--model-draft"},
    {"-v", "--verbose"},
    {"--chat-template-file", "--chat-template"},
};

constexpr std::string_view kCommands[] = {"serve", "chat", "generate"};

}  // namespace

void rename_llama_flags(std::vector<std::string>& words) {
  if (words.empty() || std::ranges::find(kCommands, words[0]) == std::end(kCommands)) return;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") return;
    const size_t equals = std::min(word.find('='), word.size());
    const auto* found =
        std::ranges::find(kRenamed, std::string_view(word).substr(0, equals), &Renamed::from);
    if (found == std::end(kRenamed)) continue;
    if (!found->to.empty()) {
      words[i] = std::string(found->to) + word.substr(equals);
    } else if (equals < word.size()) {
      words[i] = word.substr(equals + 1);
    } else {
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

}  // namespace invar::cli
