// A fuzz target without libFuzzer, so that the ordinary tests run it: every file as it stands, then
// RUNS mutations of them, always the same. Usage: TARGET_bounded RUNS FILE...
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kMaxSeed = 16 << 10;

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& seeds) : seeds_(seeds) {}

  std::string next() {
    std::string text = seeds_[below(seeds_.size())];
    for (size_t edits = 1 + below(4); edits > 0; --edits) edit(text);
    return text;
  }

 private:
  size_t below(size_t limit) { return random_() % limit; }
  // A place of the text and how many bytes from there on, at most `most`.
  std::pair<size_t, size_t> part(const std::string& text, size_t most) {
    const size_t at = below(text.size() + 1);
    return {at, std::min(text.size() - at, below(most))};
  }

  void edit(std::string& text) {
    static const std::string kPieces[] = {"-1",    "0",         "18446744073709551616",
                                          "1e999", "null",      "[",
                                          "{",     "\"",        "\\",
                                          "}",     "]",         "\xff",
                                          "\x80",  "{{",        "{%",
                                          "%}",    "(((((((((", "\xf4\x8f\xbf\xbf",
                                          "-",     "true",      std::string(1, '\0')};
    const auto [at, count] = part(text, 32);
    switch (below(6)) {
      case 0:
        text.erase(at, count);
        break;
      case 1:
        text.insert(at, text.substr(at, count));
        break;
      case 2:
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 3:
        text.replace(at, count, kPieces[below(std::size(kPieces))]);
        break;
      case 4: {
        const std::string& other = seeds_[below(seeds_.size())];
        const auto [from, length] = part(other, 256);
        text.insert(at, other.substr(from, length));
        break;
      }
      default:
        if (at < text.size()) text[at] = static_cast<char>(random_());
    }
  }

  const std::vector<std::string>& seeds_;
  std::mt19937 random_{1};
};

int run(const std::string& text) {
  return LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> seeds;
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.empty()) {
      std::fprintf(stderr, "%s: expected a file with something in it\n", argv[i]);
      return 2;
    }
    text.resize(std::min(text.size(), kMaxSeed));
    run(text);
    seeds.push_back(std::move(text));
  }
  if (seeds.empty()) return 2;
  Mutator mutator(seeds);
  const int runs = std::atoi(argv[1]);
  for (int i = 0; i < runs; ++i) run(mutator.next());
  std::printf("%zu files, %d mutations\n", seeds.size(), runs);
}
