// The bodies of vLLM's back end nccl.
#include "transfers.h"

#include <algorithm>

#include "admission.h"
#include "base/error.h"

namespace invar::server {

namespace {

constexpr int64_t kMostRanks = 1 << 16, kMostTensors = 1 << 20, kMostDimensions = 16;
constexpr int64_t kMostPieceBytes = int64_t{1} << 40;

[[noreturn]] void fail_member(const char* name, const std::string& expected,
                              const json::Value& found) {
  throw ApiError{400,
                 fmt::format("expected {} as {}, found {}", name, expected, json::excerpt(found)),
                 "", name};
}

const json::Value& member(const json::Value& info, const char* name) {
  const json::Value* found = info.find(name);
  if (!found) throw ApiError{400, fmt::format("expected {}, found none", name), "", name};
  return *found;
}

int64_t integer(const json::Value& value, const char* name, int64_t least, int64_t most) {
  if (!value.is_integer() || value.as_integer() < least || value.as_integer() > most)
    fail_member(name, fmt::format("an integer from {} to {}", least, most), value);
  return value.as_integer();
}

const json::Array& list(const json::Value& info, const char* name) {
  const json::Value& value = member(info, name);
  if (!value.is_array() || std::ssize(value.as_array()) > kMostTensors)
    fail_member(name, fmt::format("a list of at most {}", kMostTensors), value);
  return value.as_array();
}

std::vector<int64_t> shape_of(const json::Value& value) {
  if (!value.is_array() || std::ssize(value.as_array()) > kMostDimensions)
    fail_member("shapes", fmt::format("lists of at most {} sizes", kMostDimensions), value);
  std::vector<int64_t> shape;
  for (const json::Value& size : value.as_array())
    shape.push_back(integer(size, "shapes", 0, int64_t{1} << 40));
  return shape;
}

// Throws ApiError for a member that would make another update of it.
void expect_members(const json::Value& info, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : info.as_object())
    if (std::ranges::find(known, name) == known.end())
      throw ApiError{
          400,
          fmt::format("the member {} is not supported with weights by NCCL", json::quoted(name)),
          "unsupported", name};
}

TrainerGroup::Meeting meeting_of(const json::Value& info) {
  expect_members(info, {"backend", "master_address", "master_port", "rank_offset", "world_size",
                        "packed", "packed_buffer_size_bytes", "packed_num_buffers"});
  TrainerGroup::Meeting meeting;
  meeting.host = text_member(member(info, "master_address"), "master_address");
  meeting.port = static_cast<int>(integer(member(info, "master_port"), "master_port", 1, 65535));
  meeting.ranks =
      static_cast<int>(integer(member(info, "world_size"), "world_size", 2, kMostRanks));
  meeting.rank =
      static_cast<int>(integer(member(info, "rank_offset"), "rank_offset", 1, meeting.ranks - 1));
  return meeting;
}

}  // namespace

// How tensors are packed: since vLLM 0.28 the group's beginning says it, before that each update.
void Transfers::read_packing(const json::Value& info, bool& is_packed, int64_t& piece_bytes) {
  if (const json::Value* packed = info.find("packed"); packed && !packed->is_null()) {
    if (!packed->is_bool()) fail_member("packed", "true or false", *packed);
    is_packed = *packed == json::Value(true);
  }
  constexpr const char* kBytes = "packed_buffer_size_bytes";
  if (const json::Value* bytes = info.find(kBytes); bytes && !bytes->is_null())
    piece_bytes = integer(*bytes, kBytes, 1, kMostPieceBytes);
}

Announcement Transfers::announcement_of(const json::Value& info, const Packing& packing) {
  expect_members(info, {"names", "dtype_names", "shapes", "packed", "packed_buffer_size_bytes",
                        "packed_num_buffers", "weight_version", "is_checkpoint_format"});
  Announcement all{.is_packed = packing.is_packed, .piece_bytes = packing.piece_bytes};
  read_packing(info, all.is_packed, all.piece_bytes);
  const json::Array &names = list(info, "names"), &types = list(info, "dtype_names"),
                    &shapes = list(info, "shapes");
  if (names.size() != types.size() || names.size() != shapes.size())
    throw ApiError{400,
                   fmt::format("expected as many dtype_names and shapes as names, found {}, {} "
                               "and {}",
                               types.size(), shapes.size(), names.size()),
                   "", "names"};
  for (size_t i = 0; i < names.size(); ++i)
    all.tensors.push_back({text_member(names[i], "names"), text_member(types[i], "dtype_names"),
                           shape_of(shapes[i])});
  return all;
}

WeightReceiver& Transfers::expect_receiver(const char* member) const {
  if (!receiver_)
    throw ApiError{400,
                   "expected a directory (\"path\" in update_info) or safetensors as the body, "
                   "found tensors by NCCL: start the server with --weight-transfer-config "
                   "'{\"backend\": \"nccl\"}'",
                   "transport", member};
  return *receiver_;
}

void Transfers::run(std::function<WeightReceiver::Counts()> work, Done done) {
  if (is_busy_) throw ApiError{409, "expected one transfer at a time, found another", "busy"};
  is_busy_ = true;
  worker_.post([this, work = std::move(work), done = std::move(done)] {
    std::optional<ApiError> wrong;
    WeightReceiver::Counts counts;
    try {
      counts = work();
    } catch (const ApiError& error) {
      wrong = error;
    } catch (const std::exception& error) {
      wrong = ApiError{400, error.what(), "transfer"};
    }
    post_([this, done, wrong, counts] {
      is_busy_ = false;
      done(wrong, counts);
    });
  });
}

void Transfers::join(const json::Value& info, Done done) {
  WeightReceiver& receiver = expect_receiver("init_info");
  const TrainerGroup::Meeting meeting = meeting_of(info);
  Packing packing;
  read_packing(info, packing.is_packed, packing.piece_bytes);
  run(
      [&receiver, meeting] {
        receiver.join(meeting);
        return WeightReceiver::Counts();
      },
      std::move(done));
  packing_ = packing;
}

void Transfers::leave(Done done) {
  if (!receiver_) return done(std::nullopt, {});
  run(
      [this] {
        receiver_->leave();
        return WeightReceiver::Counts();
      },
      std::move(done));
}

void Transfers::abandon() {
  if (receiver_) worker_.post([this] { receiver_->leave(); });
}

void Transfers::receive(const json::Value& info, bool begins, Done done) {
  WeightReceiver& receiver = expect_receiver("update_info");
  run(
      [&receiver, announcement = announcement_of(info, packing_), begins] {
        if (begins) receiver.begin();
        return receiver.receive(announcement);
      },
      std::move(done));
}

}  // namespace invar::server
