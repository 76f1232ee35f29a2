// A struct's fields with the places that each has: the name that users write, its range, whether it
// stands in a request's body, in the journal, in receipts. Code for such a place goes over the list
// and does not name fields, so that a new one is a member and a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace invar {

struct FieldFacts {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  double low = -kInfinity, high = kInfinity;  // the range of a number
  bool in_body = true;      // a body's value is read as the type says; else the endpoint reads it
  bool in_receipts = true;  // the answer's tokens depend on it
  bool of_model = false;    // a model's files may say the value where a request does not
  bool crosses = true;      // an engine in another process needs it
  const char* flag = nullptr;  // the help of its flag in commands that generate; null: it has none
  uint32_t since = 1;          // the version of the journal's bytes that had it first
};

template <typename Owner, typename T>
struct Field {
  constexpr Field(const char* name, T Owner::*at, FieldFacts facts = {})
      : name(name), at(at), facts(facts) {}

  const char* name;
  T Owner::*at;
  FieldFacts facts;
};

// A tuple of Fields; the header of each owner that has such a list specialises it.
template <typename Owner>
inline constexpr std::tuple<> kFieldsOf;

template <typename Owner>
inline constexpr size_t kFieldCount = std::tuple_size_v<decltype(kFieldsOf<Owner>)>;

// Calls f(field, value) for the listed fields of `of` that have a fact, in their order: for
// &FieldFacts::of_model those that a model's files may say. All have `since`.
template <auto fact = &FieldFacts::since, typename Of, typename F>
constexpr void for_each_field(Of& of, F&& f) {
  using Owner = std::remove_const_t<Of>;
  const auto visit = [&]<size_t i>(std::integral_constant<size_t, i>) {
    constexpr auto& field = std::get<i>(kFieldsOf<Owner>);
    if constexpr (static_cast<bool>(field.facts.*fact)) f(field, of.*field.at);
  };
  [&]<size_t... i>(std::index_sequence<i...>) {
    (visit(std::integral_constant<size_t, i>()), ...);
  }
  (std::make_index_sequence<kFieldCount<Owner>>());
}

// Whether a listed field that has the fact has this name.
template <typename Owner, auto fact = &FieldFacts::since>
constexpr bool has_field(std::string_view name) {
  return std::apply(
      [&](const auto&... field) {
        return ((static_cast<bool>(field.facts.*fact) && field.name == name) || ...);
      },
      kFieldsOf<Owner>);
}

}  // namespace invar
