#include "model/families/renamed_source.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "numerics/math.h"

namespace invar {

namespace {

constexpr size_t kKept = 8;

float minus_one(float value, const std::string& where) {
  const float less = value - 1.0f;
  if (1.0f + less != value) fail("{}: expected 1 + w with w an f32, found {}", where, value);
  return less;
}

// The number whose product by `factor` is there, a bf16 one where there is such a one.
float quotient_of(float value, float factor, const std::string& where) {
  const float quotient = value / factor, infinity = std::numeric_limits<float>::infinity();
  const float candidates[] = {bf16_to_f32(f32_to_bf16(quotient)), quotient,
                              std::nextafter(quotient, infinity),
                              std::nextafter(quotient, -infinity)};
  const auto is_it = [&](float candidate) { return candidate * factor == value; };
  const auto* found = std::ranges::find_if(candidates, is_it);
  if (found == std::end(candidates))
    fail("{}: expected a product by {}, found {}", where, factor, value);
  return *found;
}

bool changes(const RenamedEntry& entry) {
  return entry.is_minus_one || entry.is_exponential || entry.factor != 1 || entry.multiplier != 1;
}

float changed(const RenamedEntry& entry, float value, const std::string& where) {
  if (entry.is_minus_one) return minus_one(value, where);
  if (entry.is_exponential) return -math::exp(value);
  if (entry.factor != 1) return quotient_of(value, entry.factor, where);
  return bf16_to_f32(f32_to_bf16(value)) * entry.multiplier;
}

}  // namespace

std::string RenamedSource::where(std::string_view name) const {
  const Entry& entry = find(name);
  return entry.names.empty() ? std::string(name) : base_.where(entry.names[0]);
}

void RenamedSource::read(std::string_view name, int64_t first, int64_t count, DType as,
                         void* out) const {
  const Entry& entry = find(name);
  const int64_t width = entry.width, end = first + count;
  char* to = static_cast<char*>(out);
  if (!entry.numbers.empty())
    return convert_elements(entry.numbers.data() + first, DType::f32, count, as, out);
  int64_t begin = 0;
  for (const Run& run : entry.runs) {
    const int64_t of_run = run.rows * width;
    const int64_t from = std::max(first, begin), n = std::min(end, begin + of_run) - from;
    if (n > 0) {
      read_run(entry, run, run.first * width + from - begin, n, as, to);
      to += bytes_of(as, n);
    }
    begin += of_run;
  }
}

void RenamedSource::read_run(const Entry& entry, const Run& run, int64_t first, int64_t count,
                             DType as, char* to) const {
  const std::string& of = entry.names[static_cast<size_t>(run.name)];
  if (run.is_turned) {
    std::memcpy(to, turned(entry, run, as)->data() + bytes_of(as, first),
                static_cast<size_t>(bytes_of(as, count)));
    return;
  }
  if (!changes(entry)) return base_.read(of, first, count, as, to);
  std::vector<float> values(static_cast<size_t>(count));
  base_.read(of, first, count, DType::f32, values.data());
  const std::string at = base_.where(of);
  for (float& value : values) value = changed(entry, value, at);
  convert_elements(values.data(), DType::f32, count, as, to);
}

// A tensor turned over, whose rows are its columns, each element before its place's of the other
// one. Kept for all threads that take rows of it.
RenamedSource::Bytes RenamedSource::turned(const Entry& entry, const Run& run, DType as) const {
  const std::string& name = entry.names[static_cast<size_t>(run.name)];
  const std::pair key(name, as);
  const std::lock_guard lock(turning_);
  for (auto one = kept_.begin(); one != kept_.end(); ++one)
    if (one->first == key) {
      kept_.splice(kept_.begin(), kept_, one);
      return kept_.front().second;
    }
  std::vector<const std::string*> all{&name};
  if (run.other >= 0) all.push_back(&entry.names[static_cast<size_t>(run.other)]);
  const TensorInfo& info = base_.info(name);
  const int64_t rows = info.shape[0], columns = info.shape[1], size = bytes_of(as, 1);
  const int64_t step = std::ssize(all);
  std::vector<char> made(static_cast<size_t>(step * info.elements() * size));
  std::vector<char> row(static_cast<size_t>(columns * size));
  for (int64_t t = 0; t < step; ++t)
    for (int64_t i = 0; i < rows; ++i) {
      base_.read_rows(*all[static_cast<size_t>(t)], i, 1, as, row.data());
      for (int64_t c = 0; c < columns; ++c)
        std::memcpy(made.data() + ((c * rows + i) * step + t) * size, row.data() + c * size,
                    static_cast<size_t>(size));
    }
  kept_.emplace_front(key, std::make_shared<const std::vector<char>>(std::move(made)));
  if (kept_.size() > kKept) kept_.pop_back();
  return kept_.front().second;
}

}  // namespace invar
