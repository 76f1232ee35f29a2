// Samples drafts as the target would sample their tokens: with the request's own parameters and the
// noise of the position (numerics 6), so that a drafter whose distribution is the target's proposes
// the target's very sample. Where drafts are accepted by rejection it takes the likeliest instead.
// A grammar's mask is left out: what it forbids is not accepted.
#pragma once

#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/inference.h"
#include "sampling/sampler.h"
#include "speculative/proposer.h"

namespace invar {

// A place in a draft tree whose next tokens are wanted.
struct DraftPoint {
  const DraftRequest* request = nullptr;
  std::vector<int32_t> path;  // drafts from behind the last known token up to here
  int32_t count = 1;          // tokens wanted
  std::vector<int32_t>
      tokens;  // out: different ones, the sample first; fewer if no others may come
  bool wants_scores = false;
  // Out then, for each token: the logarithm of its share. Greedy ones are probabilities; of sampled
  // ones each is weighed with its noise, and the likeliest alone are looked at.
  std::vector<float> scores;
};

class DraftSampler {
 public:
  // `kernels`: of the CPU. `confidence`: where the likeliest token has less than this share of the
  // drafter's distribution there is no draft; 0: everywhere is one.
  DraftSampler(int threads, const Kernels& kernels, double confidence);

  // logits: a row for each point.
  void sample(ThreadPool& pool, std::span<DraftPoint> points, std::span<const float> logits);

 private:
  struct PerThread {
    Sampler sampler;
    std::vector<int32_t> answer;
  };
  void sample_one(DraftPoint& point, std::span<const float> logits, PerThread& thread) const;
  bool is_sure(std::span<const float> logits) const;

  const Kernels& kernels_;
  const float most_log_sum_;  // of the logits less the largest
  std::vector<PerThread> threads_;
};

}  // namespace invar
