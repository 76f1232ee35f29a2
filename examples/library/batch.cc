// Answers several prompts together, each held to a form, and shows how likely its tokens were.
#include <invar/invar.h>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: batch MODEL\n");
    return 2;
  }
  try {
    invar::Session session(
        {.model = argv[1], .max_model_len = -1, .speculative_config = R"({"method": "ngram"})"});
    const std::vector<std::string> prompts = {
        "The name of the girl was", "The colour of the sea is", "The number of the house is"};
    invar::GenerateOptions options{.max_tokens = 12, .temperature = 0.8, .seed = 7};
    options.structured_outputs = R"({"regex": " [A-Za-z]{2,10}\\."})";
    options.logprobs = true;
    const std::vector<invar::Generation> answers = session.generate(prompts, options);
    for (size_t i = 0; i < prompts.size(); ++i) {
      float sum = 0;
      for (const float logprob : answers[i].logprobs) sum += logprob;
      std::printf("%s%s  (log-probability %.3f, %s)\n", prompts[i].c_str(), answers[i].text.c_str(),
                  double(sum), answers[i].logits_hash.substr(0, 16).c_str());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
