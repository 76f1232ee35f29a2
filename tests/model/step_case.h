// Steps of a made model on a device, for tests of what a step copies, waits for and records.
#pragma once

#include <memory>
#include <vector>

#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "model/forward_pass.h"
#include "sampling/device_sampler.h"

namespace invar::testing_model {

// Some sequences in an engine's place: a prompt each, then a token at a time.
class StepCase {
 public:
  static constexpr int kSequences = 3, kBlockSize = 32, kBlocksEach = 8, kRows = 64;

  StepCase(Device& device, const Kernels& kernels, ThreadPool* pool,
           const DecoderSpec& spec = preset_spec("tiny"))
      : spec_(spec),
        source_(dummy_weights(spec_, 1)),
        loader_(1),
        weights_(spec_, arithmetic(kernels), make_shard(spec_, 0, 1), *source_, device, loader_,
                 kernels.weights),
        decoder_(spec_, arithmetic(kernels), kernels, weights_, device, pool),
        kv_(device, states_of(spec_),
            {.blocks = kSequences * kBlocksEach,
             .block_size = kBlockSize,
             .cells = kSequences,
             .scratch = {kRows, kRows},
             .layout = kernels.cache}),
        workspace_(decoder_, kRows, kRows, 1),
        sampler_(kernels.sample, decoder_.execution, kRows),
        other_sampler_(kernels.sample, decoder_.execution, kRows) {}

  // Rows for `count` further positions of every sequence; the last of each wants logits.
  Batch batch(int count, uint32_t seed) {
    Batch batch;
    for (int s = 0; s < kSequences; ++s) {
      BatchSequence sequence{.blocks = {}, .cell = s};
      for (int i = 0; i < kBlocksEach; ++i) sequence.blocks.push_back(i * kSequences + s);
      batch.sequences.push_back(sequence);
      for (int i = 0; i < count; ++i)
        batch.rows.push_back(
            {.token = static_cast<int32_t>((seed * 31 + s * 17 + (done_ + i) * 7) % spec_.vocab),
             .position = done_ + i,
             .sequence = s});
      batch.logit_rows.push_back(static_cast<int32_t>(batch.rows.size()) - 1);
    }
    done_ += count;
    return batch;
  }

  // The logits of a step, on the host.
  std::vector<float> logits(const Batch& batch, StepGraphs* graphs = nullptr) {
    ForwardIo io;
    forward(decoder_, batch, kv_, workspace_, solo_group(), io, graphs);
    return {io.logits.begin(), io.logits.end()};
  }

  // The residual stream after a layer.
  std::vector<float> hidden_after(int layer, Batch batch, StepGraphs* graphs = nullptr) {
    batch.aux_layers = {layer};
    ForwardIo io;
    forward(decoder_, batch, kv_, workspace_, solo_group(), io, graphs);
    return {io.aux_hidden.begin(), io.aux_hidden.end()};
  }

  // The tokens of a step whose logits stay on the device.
  std::vector<int32_t> tokens(const Batch& batch) {
    ForwardIo io{.keep_logits = true};
    forward(decoder_, batch, kv_, workspace_, solo_group(), io);
    std::vector<int32_t> tokens;
    for (const Sampled& sampled : sampler_.sample(io.device_logits, spec_.vocab, inputs(batch)))
      tokens.push_back(sampled.token);
    return tokens;
  }

  // The tokens of `steps` steps, a prompt's and then a row of each sequence at a time. Each is put
  // into the stream before the one before is waited for, so that only the device knows its tokens.
  // `shift`: how many sequences further a row looks for its token; 0 is right.
  std::vector<int32_t> tokens_in_flight(int steps, int shift = 0) {
    StepGraphs graphs;
    DeviceSampler* const samplers[] = {&sampler_, &other_sampler_};
    std::vector<SampleInput> inputs_of[2];
    std::vector<int32_t> tokens;
    const auto finish = [&](int step) {
      for (const Sampled& sampled : samplers[step % 2]->finish(inputs_of[step % 2]))
        tokens.push_back(sampled.token);
    };
    for (int step = 0; step < steps; ++step) {
      Batch next = batch(step == 0 ? 20 : 1, 1);
      for (BatchRow& row : next.rows)
        if (step > 0) row.token = ~((row.sequence + shift) % kSequences);
      ForwardIo io{.sampled = samplers[(step + 1) % 2]->ids(), .keep_logits = true};
      forward(decoder_, next, kv_, workspace_, solo_group(), io, &graphs);
      inputs_of[step % 2] = inputs(next);
      samplers[step % 2]->start(io.device_logits, spec_.vocab, inputs_of[step % 2]);
      if (step > 0) finish(step - 1);
    }
    finish(steps - 1);
    return tokens;
  }
  // The same by steps that are waited for.
  std::vector<int32_t> tokens_in_turn(int steps) {
    std::vector<int32_t> all, last;
    for (int step = 0; step < steps; ++step) {
      Batch next = batch(step == 0 ? 20 : 1, 1);
      for (BatchRow& row : next.rows)
        if (step > 0) row.token = last[static_cast<size_t>(row.sequence)];
      last = tokens(next);
      all.insert(all.end(), last.begin(), last.end());
    }
    return all;
  }

  void prepare(const Batch& batch) {
    ForwardIo io;
    ForwardPass(decoder_, batch, kv_, workspace_, solo_group(), io).prepare();
  }
  // The operations of a step that was prepared, recorded.
  std::unique_ptr<Graph> record(const Batch& batch) {
    return decoder_.stream->record_graph([&] {
      ForwardIo io{.keep_logits = true};
      ForwardPass(decoder_, batch, kv_, workspace_, solo_group(), io).launch();
    });
  }
  // The logits of a prepared step by a graph of `shape`, whatever the batch is.
  std::vector<float> logits(StepGraphs& graphs, const StepShape& shape, const Batch& batch) {
    graphs.launch(shape, *decoder_.stream, [&] {
      ForwardIo io{.keep_logits = true};
      ForwardPass(decoder_, batch, kv_, workspace_, solo_group(), io).launch();
    });
    return copied_logits(batch);
  }
  // The logits of a recorded step, launched.
  std::vector<float> logits(Graph& graph, const Batch& batch) {
    decoder_.stream->launch(graph);
    return copied_logits(batch);
  }

 private:
  std::vector<float> copied_logits(const Batch& batch) {
    std::vector<float> logits(batch.logit_rows.size() * static_cast<size_t>(spec_.vocab));
    PinnedArray<float> host(decoder_.device(), logits.size(), "a test");
    decoder_.stream->download(host.data(), workspace_.logits.data(), logits.size() * sizeof(float));
    decoder_.stream->wait();
    std::copy_n(host.data(), logits.size(), logits.begin());
    return logits;
  }
  static Arithmetic arithmetic(const Kernels& kernels) { return {.order = kernels.order}; }

  std::vector<SampleInput> inputs(const Batch& batch) const {
    std::vector<SampleInput> inputs;
    for (const int32_t row : batch.logit_rows)
      inputs.push_back({.params = &params_, .position = batch.rows[row].position + 1});
    return inputs;
  }

  DecoderSpec spec_;
  std::unique_ptr<TensorSource> source_;
  ThreadPool loader_;
  DecoderWeights weights_;
  Decoder decoder_;
  SequenceStore kv_;
  Workspace workspace_;
  DeviceSampler sampler_, other_sampler_;
  SamplingParams params_{.temperature = 0.8, .seed = 7};
  int done_ = 0;
};

}  // namespace invar::testing_model
