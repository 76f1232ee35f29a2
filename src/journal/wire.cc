#include "wire.h"

#include <algorithm>

#include "base/fields.h"

namespace invar::server {

namespace {

// Version 1 had neither allowed tokens nor bad words, version 2 no mode of log-probabilities; a
// journal may still hold their lines.
constexpr uint32_t kParamsVersion =
    std::apply([](const auto&... field) { return std::max({field.facts.since...}); },
               kFieldsOf<SamplingParams>);

enum class Kind { integer, number, other };

template <typename T>
constexpr Kind kind_of(const T&) {
  return std::is_same_v<T, int32_t>  ? Kind::integer
         : std::is_same_v<T, double> ? Kind::number
                                     : Kind::other;
}

// Calls f(value) in the order of the bytes: the fields of version 1, then those of the next, and of
// each its integers, its numbers and the others.
template <typename Params, typename F>
void in_order(Params& params, uint32_t last, F f) {
  for (uint32_t version = 1; version <= last; ++version)
    for (const Kind kind : {Kind::integer, Kind::number, Kind::other})
      for_each_field(params, [&](const auto& field, auto& value) {
        if (field.facts.since == version && kind_of(value) == kind) f(value);
      });
}

template <typename T>
void put(ByteWriter& out, const T& value) {
  fields::write(out, value);
}
// The place of a count is there when it is not given, too.
void put(ByteWriter& out, const std::optional<int32_t>& count) {
  fields::write(out, count.has_value());
  out.put(count.value_or(0));
}

template <typename T>
void get(ByteReader& in, T& value) {
  fields::read(in, value);
}
void get(ByteReader& in, std::optional<int32_t>& count) {
  bool given = false;
  fields::read(in, given);
  const auto number = in.get<int32_t>();
  if (given) count = number;
}

}  // namespace

void put_params(ByteWriter& out, const SamplingParams& params) {
  out.put(kParamsVersion);
  in_order(params, kParamsVersion, [&](const auto& value) { put(out, value); });
}

SamplingParams get_params(ByteReader& in) {
  const auto version = in.get<uint32_t>();
  if (version < 1 || version > kParamsVersion)
    fail("sampling parameters: expected version 1 to {}, found {}", kParamsVersion, version);
  SamplingParams params;
  in_order(params, version, [&](auto& value) { get(in, value); });
  return params;
}

}  // namespace invar::server
