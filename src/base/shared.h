// A vector or text of which copies are one: what many hold and nobody changes is held once.
#pragma once

#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>

namespace invar {

// Reads as a constant T. `edit` gives the one T of this copy, so it copies what others hold too.
template <typename T>
class Shared {
 public:
  using value_type = typename T::value_type;

  Shared() = default;
  Shared(T value) : value_(std::make_shared<T>(std::move(value))) {}
  template <typename From>
  requires(std::is_convertible_v<From, T> && !std::is_base_of_v<Shared, std::decay_t<From>>)
      Shared(From&& value)
      : Shared(T(std::forward<From>(value))) {}
  Shared(std::initializer_list<value_type> values) : Shared(T(values)) {}

  const T& get() const { return value_ ? *value_ : none(); }
  operator const T&() const { return get(); }
  T& edit() {
    if (!value_ || value_.use_count() > 1) value_ = std::make_shared<T>(get());
    return *value_;
  }

  bool empty() const { return get().empty(); }
  size_t size() const { return get().size(); }
  auto data() const { return get().data(); }
  auto begin() const { return get().begin(); }
  auto end() const { return get().end(); }
  const auto& operator[](size_t i) const { return get()[i]; }
  const auto& front() const { return get().front(); }
  const auto& back() const { return get().back(); }

  // Whether the two are one, as copies are.
  bool is_same(const Shared& other) const { return value_ == other.value_; }
  bool operator==(const Shared& other) const { return is_same(other) || get() == other.get(); }
  bool operator==(const T& other) const { return get() == other; }

 private:
  static const T& none() {
    static const T empty;
    return empty;
  }

  std::shared_ptr<T> value_;
};

}  // namespace invar
