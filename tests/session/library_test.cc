// The library as its users call it: many prompts, a loop of their own, several threads, other
// weights. Answers are those of one call alone.
#include <gtest/gtest.h>
#include <invar/invar.h>

#include <algorithm>
#include <thread>

#include "../weights/model_files.h"
#include "engine/model_description.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"

namespace invar {
namespace {

SessionOptions tiny(uint64_t seed = 7) {
  return {.model = "tiny",
          .load_format = "dummy:" + std::to_string(seed),
          .threads = 1,
          .max_model_len = 128,
          .kv_cache_gib = 1.0 / 64,
          .max_num_seqs = 8};
}

std::vector<std::vector<int32_t>> prompts(size_t count) {
  std::vector<std::vector<int32_t>> all(count);
  for (size_t i = 0; i < count; ++i)
    for (size_t j = 0; j < 5 + 7 * i; ++j)
      all[i].push_back(static_cast<int32_t>((31 * i + 17 * j) % 400));
  return all;
}

constexpr uint64_t kSeed = 5;

GenerateOptions options(int tokens = 20) {
  return {.max_tokens = tokens, .temperature = 0.9, .seed = kSeed, .ignore_eos = true};
}

std::vector<std::string> hashes(const std::vector<Generation>& answers) {
  std::vector<std::string> all;
  for (const Generation& answer : answers) all.push_back(answer.logits_hash);
  return all;
}

// Each prompt alone, in a session of its own.
std::vector<std::string> alone(size_t count, const SessionOptions& session_options = tiny()) {
  std::vector<Generation> answers;
  for (const auto& prompt : prompts(count))
    answers.push_back(Session(session_options).generate(prompt, options()));
  return hashes(answers);
}

TEST(Library, AnswersOfManyPromptsAreThoseOfEachAlone) {
  Session session(tiny());
  std::vector<std::vector<int32_t>> streamed(5);
  const auto asked = prompts(5);
  const auto answers = session.generate(asked, options(), [&](const GeneratedToken& token) {
    EXPECT_EQ(token.index, std::ssize(streamed[token.prompt]));
    streamed[token.prompt].push_back(token.id);
    return true;
  });
  EXPECT_EQ(hashes(answers), alone(5));
  EXPECT_NE(hashes(answers), alone(5, tiny(8))) << "the control: another model";
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(answers[i].prompt_tokens, asked[i]);
    EXPECT_EQ(answers[i].tokens, streamed[i]);
    EXPECT_EQ(answers[i].finish_reason, "length");
  }
}

TEST(Library, ACallbackEndsTheAnswerThatItSaw) {
  Session session(tiny());
  const auto answers = session.generate(prompts(3), options(), [](const GeneratedToken& token) {
    return token.prompt != 1 || token.index < 4;
  });
  EXPECT_EQ(answers[1].finish_reason, "cancelled");
  EXPECT_EQ(answers[1].tokens.size(), 5U);
  EXPECT_EQ(answers[0].tokens.size(), 20U);
  EXPECT_FALSE(session.has_work());
  const auto throws = [](const GeneratedToken&) -> bool { throw std::logic_error("the caller's"); };
  EXPECT_THROW(session.generate(prompts(3), options(), throws), std::logic_error);
  EXPECT_EQ(hashes(session.generate(prompts(3), options())), alone(3)) << "nothing is left of it";
}

TEST(Library, WhoDrivesTheLoopAddsAndCancelsBetweenSteps) {
  Session session(tiny());
  const auto asked = prompts(3);
  std::vector<int64_t> ids{session.add(asked[0], options()), session.add(asked[1], options())};
  std::map<int64_t, Generation> done;
  std::map<int64_t, int> tokens;
  while (session.has_work())
    for (Update& update : session.step()) {
      if (update.token && ++tokens[update.id] == 3 && update.id == ids[0]) {
        ids.push_back(session.add(asked[2], options()));
        session.cancel(ids[1]);
      }
      if (update.generation) done[update.id] = *update.generation;
    }
  ASSERT_EQ(done.size(), 2U);
  EXPECT_LE(tokens[ids[1]], 4);
  const auto expected = alone(3);
  EXPECT_EQ(done[ids[0]].logits_hash, expected[0]);
  EXPECT_EQ(done[ids[2]].logits_hash, expected[2]);
  EXPECT_TRUE(session.step().empty());
  session.cancel(12345);
}

TEST(Library, SeveralThreadsCallOneSession) {
  Session session(tiny());
  const auto expected = alone(6);
  const auto asked = prompts(6);
  std::vector<std::jthread> threads;
  for (size_t t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 3; ++round) {
        const size_t i = (t + static_cast<size_t>(round)) % 6;
        std::thread::id caller = std::this_thread::get_id();
        const Generation answer = session.generate(asked[i], options(), [&](const GeneratedToken&) {
          EXPECT_EQ(std::this_thread::get_id(), caller);
          return true;
        });
        EXPECT_EQ(answer.logits_hash, expected[i]);
        EXPECT_EQ(session.score(asked[i]).size(), asked[i].size() - 1);
        EXPECT_FALSE(session.embed("some text").empty());
      }
    });
}

TEST(Library, DraftsAndPoliciesChangeNoAnswer) {
  SessionOptions drafting = tiny();
  drafting.speculative_config = R"({"method": "ngram", "prompt_lookup_min": 1, "adaptive": false})";
  drafting.scheduling_policy = "priority";
  Session session(drafting);
  EXPECT_EQ(hashes(session.generate(prompts(4), options())), alone(4));
  drafting.speculative_config = R"({"method": "nothing"})";
  EXPECT_THROW(Session{drafting}, std::runtime_error);
}

TEST(Library, AnswersAreHeldToAForm) {
  Session session(tiny());
  GenerateOptions held = options(40);
  held.ignore_eos = false;
  held.structured_outputs = R"({"choice": ["yes", "no"]})";
  const std::string text = session.generate("Is it?", held).text;
  EXPECT_TRUE(text == "yes" || text == "no") << text;
  held.structured_outputs = R"({"choice": 3})";
  EXPECT_THROW(session.generate("Is it?", held), std::runtime_error);
}

TEST(Library, LogProbabilitiesOfPromptsAreThoseOfScore) {
  Session session(tiny());
  const auto prompt = prompts(4)[3];
  GenerateOptions asked = options(3);
  asked.logprobs = asked.prompt_logprobs = true;
  asked.top_logprobs = 2;
  const Generation answer = session.generate(prompt, asked);
  EXPECT_EQ(answer.prompt_logprobs, session.score(prompt));
  ASSERT_EQ(answer.logprobs.size(), 3U);
  ASSERT_EQ(answer.top_logprobs.size(), 3U);
  EXPECT_EQ(answer.top_logprobs[0].size(), 2U);
  EXPECT_EQ(answer.top_logprobs[0][0].rank, 1);
  EXPECT_EQ(answer.top_prompt_logprobs.size(), prompt.size() - 1);
}

// The tensors of the made model of this seed whose names begin so.
struct Tensors {
  Tensors(uint64_t seed, const std::string& prefix) {
    const auto source =
        open_weights(ModelOptions{.model = "tiny", .load_format = "dummy:" + std::to_string(seed)});
    for (const std::string& name : source->names()) {
      if (!name.starts_with(prefix)) continue;
      const TensorInfo& info = source->info(name);
      auto& bytes = memory.emplace_back(static_cast<size_t>(info.elements()) * 2);
      source->read(name, 0, info.elements(), DType::bf16, bytes.data());
      views.push_back({.name = name, .dtype = "BF16", .shape = info.shape, .data = bytes.data()});
    }
  }
  std::vector<std::vector<std::byte>> memory;
  std::vector<Tensor> views;
};

TEST(Library, WeightsAreUpdatedByNameFromMemory) {
  Session session(tiny(7));
  const auto asked = prompts(3);
  EXPECT_EQ(hashes(session.generate(asked, options())), alone(3, tiny(7)));
  const Tensors some(8, "model.layers.0"), all(8, "");
  ASSERT_GT(some.views.size(), 3U);
  ASSERT_GT(all.views.size(), some.views.size());
  session.update_weights(some.views);
  const auto mixed = hashes(session.generate(asked, options()));
  EXPECT_NE(mixed, alone(3, tiny(7)));
  EXPECT_NE(mixed, alone(3, tiny(8))) << "the others stay";

  // What cannot be taken changes nothing.
  const auto refused = [&](const Tensor& tensor) {
    EXPECT_THROW(session.update_weights({&tensor, 1}), std::runtime_error) << tensor.name;
    EXPECT_EQ(hashes(session.generate(asked, options())), mixed);
  };
  Tensor wrong = all.views.back();
  wrong.name = "model.no_such_tensor";
  refused(wrong);
  wrong = all.views.back();
  wrong.shape.push_back(2);
  refused(wrong);
  wrong = all.views.back();
  wrong.dtype = "F32";
  refused(wrong);
  std::vector<uint16_t> nan(all.memory.back().size() / 2, 0x7fc0);
  wrong = all.views.back();
  wrong.data = nan.data();
  refused(wrong);

  const int64_t live = session.add(asked[0], options());
  EXPECT_THROW(session.update_weights(all.views), std::runtime_error) << "a request is live";
  session.cancel(live);
  session.update_weights(all.views);
  EXPECT_EQ(hashes(session.generate(asked, options())), alone(3, tiny(8)));
}

// A model whose q, k and v have biases and whose head is its embedding, of two seeds.
class WeightsOfDirectories : public testing::Test {
 protected:
  WeightsOfDirectories() {
    DecoderSpec spec = preset_spec("tiny");
    set_family(spec, "qwen2");
    spec.tied_head = true;
    ThreadPool pool(1);
    make_model(files_ / "one", {.spec = spec}, 7, pool);
    make_model(files_ / "two", {.spec = spec}, 8, pool);
  }
  SessionOptions options_of(const std::string& name) const {
    SessionOptions options = tiny();
    options.model = files_ / name;
    options.load_format = "auto";
    return options;
  }
  static void take(Session& to, Session& from, const std::vector<std::string>& names) {
    std::vector<std::vector<std::byte>> memory;
    std::vector<Tensor> tensors;
    for (const Tensor& tensor : from.tensors())
      if (std::ranges::find(names, tensor.name) != names.end()) {
        tensors.push_back(tensor);
        tensors.back().data = memory.emplace_back(from.tensor_bytes(tensor.name)).data();
      }
    ASSERT_EQ(tensors.size(), names.size());
    to.update_weights(tensors);
  }
  static std::vector<std::string> bits(Session& session) {
    return hashes(session.generate(prompts(2), options()));
  }

  TempDirectory files_;
};

// Trainers send weights in buckets: what makes one product comes in several.
TEST_F(WeightsOfDirectories, MayComeInPieces) {
  Session piecewise(options_of("one")), whole(options_of("one")), other(options_of("two"));
  const std::string at = "model.layers.1.self_attn.";
  const std::vector<std::string> pieces[] = {
      {at + "q_proj.weight", at + "q_proj.bias"},
      {at + "k_proj.weight", at + "k_proj.bias"},
      {at + "v_proj.weight", at + "v_proj.bias"},
  };
  std::vector<std::string> all;
  for (const auto& piece : pieces) all.insert(all.end(), piece.begin(), piece.end());
  take(whole, other, all);
  for (const auto& piece : pieces) {
    EXPECT_NE(bits(piecewise), bits(whole)) << "the control: before " << piece[0];
    take(piecewise, other, piece);
  }
  EXPECT_EQ(bits(piecewise), bits(whole));
  EXPECT_EQ(piecewise.weights_digest(), whole.weights_digest());
  for (const Tensor& tensor : other.tensors()) {
    EXPECT_NE(bits(piecewise), bits(other)) << "the control: before " << tensor.name;
    take(piecewise, other, {tensor.name});
  }
  EXPECT_EQ(bits(piecewise), bits(other));
  EXPECT_EQ(piecewise.weights_digest(), other.weights_digest());
  piecewise.sleep(2);
  piecewise.wake_up();
  EXPECT_EQ(bits(piecewise), bits(other));
}

TEST_F(WeightsOfDirectories, MayHaveTheHeadThatIsTheEmbedding) {
  Session session(options_of("one")), other(options_of("two"));
  const auto before = bits(session);
  const std::string name = "model.embed_tokens.weight";
  const auto first = session.tensor_bytes(name), second = other.tensor_bytes(name);
  Tensor embedding;
  for (const Tensor& tensor : session.tensors())
    if (tensor.name == name) embedding = tensor;
  const auto head = [&](const std::vector<std::byte>& bytes) {
    Tensor tensor = embedding;
    tensor.name = "lm_head.weight";
    tensor.data = bytes.data();
    return tensor;
  };
  const auto take_all = [&](const std::vector<Tensor>& tensors) {
    session.update_weights(tensors);
  };
  const auto refused = [&](const std::vector<Tensor>& tensors) {
    const auto bits_before = bits(session);
    try {
      take_all(tensors);
      FAIL() << "expected an error";
    } catch (const std::exception& error) {
      EXPECT_STREQ(error.what(),
                   "update_weights: \"lm_head.weight\": expected the bits of "
                   "\"model.embed_tokens.weight\", which is this model's head, found others in "
                   "row 511");
    }
    EXPECT_EQ(bits(session), bits_before);
  };
  std::vector<std::byte> last_differs = first;
  last_differs.back() ^= std::byte{1};
  embedding.data = second.data();
  take_all({head(first)});
  refused({head(last_differs)});
  EXPECT_EQ(bits(session), before);
  take_all({head(second), embedding});
  EXPECT_NE(bits(session), before);
  take_all({head(second)});
  last_differs = second;
  last_differs.back() ^= std::byte{1};
  refused({embedding, head(last_differs)});
  refused({head(last_differs)});
  EXPECT_EQ(session.tensor_bytes(name), second);
}

}  // namespace
}  // namespace invar
