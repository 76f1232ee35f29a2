// Weights from tensors in a GPU's memory, and what sleeps there, against the host's way.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <invar/invar.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "device/cuda_device.h"
#include "kernels/back_end.h"

namespace invar {
namespace {

SessionOptions options(const std::string& model, int seed, const char* arithmetic = "hopper") {
  return {.model = model,
          .load_format = "dummy:" + std::to_string(seed),
          .arithmetic = arithmetic,
          .device = "cuda",
          .max_model_len = 512,
          .kv_cache_gib = 0.25,
          .max_num_seqs = 8};
}

std::string bits(Session& session) {
  const std::vector<int32_t> prompt{5, 6, 7, 8, 9, 10, 11};
  return session.generate(std::span<const int32_t>(prompt), {.max_tokens = 6, .ignore_eos = true})
      .logits_hash;
}

size_t used() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return total - free;
}

// Tensors in the GPU's memory.
class GpuTensors {
 public:
  ~GpuTensors() {
    for (void* address : all_) cudaFree(address);
  }
  void* allocate(size_t bytes) {
    void* address = nullptr;
    if (cudaMalloc(&address, bytes) != cudaSuccess) throw std::runtime_error("too little memory");
    all_.push_back(address);
    return address;
  }
  Tensor copy_of(Session& from, Tensor tensor) {
    const std::vector<std::byte> bytes = from.tensor_bytes(tensor.name);
    tensor.data = allocate(bytes.size());
    tensor.gpu = 0;
    EXPECT_EQ(cudaMemcpy(const_cast<void*>(tensor.data), bytes.data(), bytes.size(),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
    return tensor;
  }
  std::vector<Tensor> copies_of(Session& from) {
    std::vector<Tensor> tensors;
    for (const Tensor& tensor : from.tensors()) tensors.push_back(copy_of(from, tensor));
    return tensors;
  }

 private:
  std::vector<void*> all_;
};

class GpuWeights : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() > 0) return;
    const char* required = std::getenv("INVAR_REQUIRE");
    if (required && std::string(required).find("cuda") != std::string::npos)
      FAIL() << "there is no GPU";
    GTEST_SKIP() << "NOT RUN: there is no GPU";
  }
};

TEST_F(GpuWeights, ComeFromTensorsOfTheSameGpu) {
  Session one(options("tiny", 7)), other(options("tiny", 8));
  ASSERT_EQ(one.gpu(), 0);
  const std::string before = bits(one), wanted = bits(other), digest = one.weights_digest();
  ASSERT_NE(before, wanted) << "the control";
  GpuTensors memory;
  one.update_weights(memory.copies_of(other));
  EXPECT_EQ(bits(one), wanted);
  EXPECT_EQ(one.weights_digest(), other.weights_digest());
  for (const Tensor& tensor : one.tensors())
    EXPECT_EQ(one.tensor_bytes(tensor.name), other.tensor_bytes(tensor.name)) << tensor.name;
  // What slept has them still, whether the host kept them or read them again.
  for (const int level : {1, 2}) {
    one.sleep(level);
    one.wake_up({"weights"});
    one.wake_up({"kv_cache"});
    EXPECT_EQ(bits(one), wanted) << level;
  }
  Session fresh(options("tiny", 7));
  GpuTensors back;
  one.update_weights(back.copies_of(fresh));
  EXPECT_EQ(bits(one), before);
  EXPECT_EQ(one.weights_digest(), digest);
}

TEST_F(GpuWeights, OfOneTensorLeaveTheOthers) {
  Session gpu(options("tiny", 7)), host(options("tiny", 7)), other(options("tiny", 8));
  const std::string before = bits(gpu);
  for (const std::string name :
       {"model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight",
        "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"}) {
    Tensor tensor;
    for (const Tensor& one : other.tensors())
      if (one.name == name) tensor = one;
    ASSERT_EQ(tensor.name, name);
    GpuTensors memory;
    const std::vector<Tensor> there{memory.copy_of(other, tensor)};
    const std::vector<std::byte> bytes = other.tensor_bytes(name);
    tensor.data = bytes.data();
    const std::vector<Tensor> here{tensor};
    gpu.update_weights(there);
    host.update_weights(here);
    EXPECT_EQ(bits(gpu), bits(host)) << name;
    EXPECT_EQ(gpu.weights_digest(), host.weights_digest()) << name;
    EXPECT_NE(bits(gpu), before) << name;
  }
}

// Matrices lie in rows, or in panels that have rows of several tensors.
TEST_F(GpuWeights, MayComeOneByOne) {
  for (const char* arithmetic : {"hopper", "portable"}) {
    Session one(options("tiny", 7, arithmetic)), other(options("tiny", 8, arithmetic));
    const std::string wanted = bits(other);
    bool is_there = false;
    for (Tensor tensor : other.tensors()) {
      EXPECT_NE(bits(one), wanted) << arithmetic << ", the control: before " << tensor.name;
      GpuTensors memory;
      const std::vector<std::byte> bytes = other.tensor_bytes(tensor.name);
      is_there = !is_there;
      if (is_there)
        tensor = memory.copy_of(other, tensor);
      else
        tensor.data = bytes.data();
      one.update_weights({&tensor, 1});
    }
    EXPECT_EQ(bits(one), wanted) << arithmetic;
  }
}

TEST_F(GpuWeights, WithAFaultAreNotTaken) {
  Session one(options("tiny", 7)), other(options("tiny", 8));
  const std::string before = bits(one), digest = one.weights_digest();
  GpuTensors memory;
  std::vector<Tensor> tensors = memory.copies_of(other);
  const uint16_t nan = 0x7fc0;
  auto* last = static_cast<std::byte*>(const_cast<void*>(tensors.back().data));
  ASSERT_EQ(cudaMemcpy(last, &nan, 2, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_THROW(one.update_weights(tensors), std::runtime_error);
  tensors.pop_back();
  tensors.front().shape.front() += 1;
  EXPECT_THROW(one.update_weights(tensors), std::runtime_error);
  tensors.front().shape.front() -= 1;
  tensors.front().gpu = 1;
  EXPECT_THROW(one.update_weights(tensors), std::runtime_error);
  EXPECT_EQ(bits(one), before);
  EXPECT_EQ(one.weights_digest(), digest);
}

TEST_F(GpuWeights, SleepGivesTheGpuItsMemoryBack) {
  Session session(options("bench-100m", 7));
  const std::string before = bits(session);
  const size_t awake = used(), weights = size_t{180} << 20, keys = size_t{60} << 20;
  session.update_weights({});
  EXPECT_GT(used() + (size_t{8} << 20), awake) << "the control: awake it keeps them";
  for (const int level : {1, 2}) {
    session.sleep(level);
    EXPECT_LT(used() + weights + keys, awake) << level;
    session.wake_up({"weights"});
    EXPECT_LT(used() + keys, awake) << level;
    session.wake_up({"kv_cache"});
    EXPECT_EQ(bits(session), before) << level;
    EXPECT_LT(used(), awake + (size_t{64} << 20)) << level;
  }
}

// Qwen3-8B's shape, INVAR_WEIGHTS_MODEL another's: seconds of an update, at most 1.5.
TEST_F(GpuWeights, OfEightBillionTakeLittleTime) {
  const char* model = std::getenv("INVAR_WEIGHTS_MODEL");
  if (!model) GTEST_SKIP() << "INVAR_WEIGHTS_MODEL names no model";
  Session session(options(model, 1));
  GpuTensors memory;
  std::vector<Tensor> tensors = session.tensors();
  size_t all = 0;
  for (Tensor& tensor : tensors) {
    size_t bytes = 2;
    for (const int64_t size : tensor.shape) bytes *= static_cast<size_t>(size);
    tensor.data = memory.allocate(bytes);
    tensor.gpu = 0;
    ASSERT_EQ(cudaMemset(const_cast<void*>(tensor.data), 0x3c, bytes), cudaSuccess);
    all += bytes;
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (int round = 0; round < 3; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    session.update_weights(tensors);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%s: %zu MB in %.3f s\n", model, all / 1000000, seconds);
    EXPECT_LT(seconds, 1.5);
  }
  session.sleep(1);
  const auto begin = std::chrono::steady_clock::now();
  session.wake_up();
  std::printf("awake after a sleep of level 1 in %.3f s\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

TEST_F(GpuWeights, ChunksHaveTheDigestsOfTheHost) {
  const auto device = make_cuda_device(0);
  constexpr int64_t kChunk = 4096;
  std::vector<DeviceArray<std::byte>> arrays;
  std::vector<GpuValues> values;
  std::vector<Digest> expected;
  for (const DType type : {DType::bf16, DType::f16, DType::f32})
    for (const int64_t count : {2L, 30L, 4094L, 4096L, 4098L, 3 * 4096L + 28}) {
      std::vector<std::byte> bytes(static_cast<size_t>(bytes_of(type, count)));
      for (size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::byte>((i * 2654435761u + static_cast<size_t>(count)) >> 11);
      device->upload(arrays.emplace_back(*device, bytes.size(), "a test").data(), bytes.data(),
                     bytes.size());
      values.push_back({arrays.back().data(), type, count});
      for (int64_t at = 0; at < count; at += kChunk)
        expected.push_back(sha256(std::span(bytes).subspan(
            static_cast<size_t>(bytes_of(type, at)),
            static_cast<size_t>(bytes_of(type, std::min(kChunk, count - at))))));
    }
  EXPECT_EQ(gpu_back_end().chunk_digests(*device, values, kChunk), expected);
  std::byte byte{};
  device->download(&byte, arrays[3].data(), 1);
  byte ^= std::byte{1};
  device->upload(arrays[3].data(), &byte, 1);
  EXPECT_NE(gpu_back_end().chunk_digests(*device, values, kChunk), expected);
}

}  // namespace
}  // namespace invar
