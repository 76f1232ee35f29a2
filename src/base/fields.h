// A struct through bytes and back, and its fields by name, without a list of them to keep beside
// it: the fields of an aggregate are counted, bound and named by the compiler, so none can be left
// out. The bytes are for messages between processes; little-endian.
//
// A field is a number, a bool, an enumeration with a count_of, a string, a vector, an array of
// integers, an optional, a variant, a pair, a Shared or such a struct again. A struct may have an
// `expect_valid(const T&)` beside it that throws Error for values that make no sense; whoever reads
// one has called it.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/shared.h"

namespace invar {

namespace fields {

struct AnyField {
  template <typename T>
  operator T() const;  // only asked about
};

template <typename T, typename... Found>
constexpr size_t count() {
  if constexpr (requires { T{Found{}..., AnyField{}}; })
    return count<T, Found..., AnyField>();
  else
    return sizeof...(Found);
}

template <typename T, template <typename...> class Of>
inline constexpr bool is_one_of = false;
template <typename... Ts, template <typename...> class Of>
inline constexpr bool is_one_of<Of<Ts...>, Of> = true;

}  // namespace fields

// References to the fields of an aggregate, as a tuple. A wrong count does not compile.
template <typename T>
constexpr auto fields_of(T& of) {
  constexpr size_t n = fields::count<std::remove_const_t<T>>();
  static_assert(n <= 31, "a struct of more fields than are bound here");
  // clang-format off
  if constexpr (n == 0) return std::tie();
  else if constexpr (n == 1) { auto& [a] = of; return std::tie(a); }
  else if constexpr (n == 2) { auto& [a, b] = of; return std::tie(a, b); }
  else if constexpr (n == 3) { auto& [a, b, c] = of; return std::tie(a, b, c); }
  else if constexpr (n == 4) { auto& [a, b, c, d] = of; return std::tie(a, b, c, d); }
  else if constexpr (n == 5) { auto& [a, b, c, d, e] = of; return std::tie(a, b, c, d, e); }
  else if constexpr (n == 6) { auto& [a, b, c, d, e, f] = of; return std::tie(a, b, c, d, e, f); }
  else if constexpr (n == 7) { auto& [a, b, c, d, e, f, g] = of; return std::tie(a, b, c, d, e, f, g); }
  else if constexpr (n == 8) { auto& [a, b, c, d, e, f, g, h] = of; return std::tie(a, b, c, d, e, f, g, h); }
  else if constexpr (n == 9) { auto& [a, b, c, d, e, f, g, h, i] = of; return std::tie(a, b, c, d, e, f, g, h, i); }
  else if constexpr (n == 10) { auto& [a, b, c, d, e, f, g, h, i, j] = of; return std::tie(a, b, c, d, e, f, g, h, i, j); }
  else if constexpr (n == 11) { auto& [a, b, c, d, e, f, g, h, i, j, k] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k); }
  else if constexpr (n == 12) { auto& [a, b, c, d, e, f, g, h, i, j, k, l] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l); }
  else if constexpr (n == 13) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m); }
  else if constexpr (n == 14) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o); }
  else if constexpr (n == 15) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p); }
  else if constexpr (n == 16) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q); }
  else if constexpr (n == 17) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r); }
  else if constexpr (n == 18) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s); }
  else if constexpr (n == 19) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t); }
  else if constexpr (n == 20) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u); }
  else if constexpr (n == 21) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v); }
  else if constexpr (n == 22) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w); }
  else if constexpr (n == 23) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x); }
  else if constexpr (n == 24) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y); }
  else if constexpr (n == 25) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z); }
  else if constexpr (n == 26) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z, aa] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z, aa); }
  else if constexpr (n == 27) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab); }
  else if constexpr (n == 28) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab, ac] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab, ac); }
  else if constexpr (n == 29) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab, ac, ad] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab, ac, ad); }
  else if constexpr (n == 30) { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab, ac, ad, ae] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab, ac, ad, ae); }
  else { auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab, ac, ad, ae, af] = of; return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v, w, x, y, z, aa, ab, ac, ad, ae, af); }
  // clang-format on
}

namespace fields {

template <typename T>
inline constexpr bool is_number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

template <typename T>
using Tuple = decltype(fields_of(std::declval<T&>()));

// Calls f.operator()<Field>() for the type of every field; whether all say yes, or the sum.
template <typename T, typename F>
constexpr auto over_types(F f, auto start, auto join) {
  return []<typename... Fields>(std::tuple<Fields&...>*, F f, auto sum, auto join) {
    ((sum = join(sum, f.template operator()<Fields>())), ...);
    return sum;
  }(static_cast<Tuple<T>*>(nullptr), f, start, join);
}

template <typename T>
inline constexpr bool is_digest = false;
template <typename T, size_t n>
inline constexpr bool is_digest<std::array<T, n>> = std::is_integral_v<T>;

#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-internal"
#pragma clang diagnostic ignored "-Wundefined-var-template"
#endif
// Never defined: the names of its fields are read from the addresses of these.
template <typename T>
struct Nowhere {
  T value;
};
template <typename T>
extern const Nowhere<T> nowhere;
template <typename Field>
struct Address {
  constexpr Address(const Field* of) : of(of) {}
  const Field* of;
};

// The field's name in the compiler's spelling of its address, "nowhere.value.T::min_p" or like it.
template <Address address>
constexpr std::string_view last_name() {
  constexpr std::string_view text = __PRETTY_FUNCTION__;
  constexpr size_t from = text.rfind("value.");
  constexpr size_t end = std::min(text.find(")}", from), text.find("}]", from));
  constexpr size_t begin = text.find_last_of(".:", end) + 1;
  return text.substr(begin, end - begin);
}

// The names of an aggregate's fields, in their order.
template <typename T>
constexpr auto names() {
  return []<size_t... i>(std::index_sequence<i...>) {
    return std::array{last_name<Address{&std::get<i>(fields_of(nowhere<T>.value))}>()...};
  }
  (std::make_index_sequence<count<T>()>());
}
#if defined(__clang__)
#pragma clang diagnostic pop
#endif

// Whether the bytes in memory are those of its fields, any of which are a value of T.
template <typename T>
constexpr bool is_plain() {
  if constexpr (std::is_integral_v<T>)
    return !std::is_same_v<T, bool>;
  else if constexpr (is_digest<T>)
    return true;
  else if constexpr (std::is_aggregate_v<T> && std::is_trivially_copyable_v<T> &&
                     std::has_unique_object_representations_v<T> &&
                     !requires(const T& x) { expect_valid(x); })
    return over_types<T>([]<typename Field>() { return is_plain<Field>(); }, true,
                         [](bool a, bool b) { return a && b; });
  else
    return false;
}

// Bytes that a value takes at least.
template <typename T>
constexpr size_t least_bytes() {
  if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || is_digest<T>)
    return sizeof(T);
  else if constexpr (is_one_of<T, std::pair>)
    return least_bytes<typename T::first_type>() + least_bytes<typename T::second_type>();
  else if constexpr (std::is_same_v<T, std::string> || is_one_of<T, std::vector> ||
                     is_one_of<T, Shared>)
    return sizeof(uint64_t);
  else if constexpr (is_one_of<T, std::optional> || is_one_of<T, std::variant>)
    return 1;
  else
    return over_types<T>([]<typename Field>() { return least_bytes<Field>(); }, size_t{0},
                         [](size_t a, size_t b) { return a + b; });
}

template <typename T>
void write(ByteWriter& out, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    out.put(static_cast<uint8_t>(value));
  } else if constexpr (is_number<T> || std::is_enum_v<T> || is_digest<T>) {
    out.put_bytes(&value, sizeof value);
  } else if constexpr (is_one_of<T, std::pair>) {
    write(out, value.first);
    write(out, value.second);
  } else if constexpr (is_one_of<T, Shared>) {
    write(out, value.get());
  } else if constexpr (std::is_same_v<T, std::string>) {
    out.put_text(value);
  } else if constexpr (is_one_of<T, std::vector>) {
    out.put(static_cast<uint64_t>(value.size()));
    if constexpr (is_plain<typename T::value_type>())
      out.put_bytes(value.data(), value.size() * sizeof(typename T::value_type));
    else
      for (const auto& element : value) write<typename T::value_type>(out, element);
  } else if constexpr (is_one_of<T, std::optional>) {
    write(out, value.has_value());
    if (value) write(out, *value);
  } else if constexpr (is_one_of<T, std::variant>) {
    static_assert(std::variant_size_v<T> < 256);
    out.put(static_cast<uint8_t>(value.index()));
    std::visit([&](const auto& one) { write(out, one); }, value);
  } else {
    static_assert(std::is_aggregate_v<T>, "a field of a type that has no bytes");
    std::apply([&](const auto&... field) { (write(out, field), ...); }, fields_of(value));
  }
}

template <typename T>
void read(ByteReader& in, T& value);

// The alternative number `index` of a variant.
template <typename T, size_t I = 0>
void read_alternative(ByteReader& in, size_t index, T& value) {
  if constexpr (I == std::variant_size_v<T>) {
    in.fail_with("a kind that does not exist");
  } else if (index == I) {
    read(in, value.template emplace<I>());
  } else {
    read_alternative<T, I + 1>(in, index, value);
  }
}

template <typename T>
void read(ByteReader& in, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    const auto byte = in.get<uint8_t>();
    if (byte > 1) in.fail_with("a truth value that is neither 0 nor 1");
    value = byte == 1;
  } else if constexpr (is_number<T> || is_digest<T>) {
    in.get_bytes(&value, sizeof value);
  } else if constexpr (is_one_of<T, std::pair>) {
    read(in, value.first);
    read(in, value.second);
  } else if constexpr (is_one_of<T, Shared>) {
    read(in, value.edit());
  } else if constexpr (std::is_enum_v<T>) {
    const auto number = in.get<std::underlying_type_t<T>>();
    if (std::cmp_less(number, 0) || std::cmp_greater_equal(number, count_of(T{})))
      in.fail_with("a value that its enumeration does not have");
    value = static_cast<T>(number);
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = in.get_text();
  } else if constexpr (is_one_of<T, std::vector>) {
    using Element = typename T::value_type;
    value.resize(in.get_count(least_bytes<Element>()));
    if constexpr (is_plain<Element>())
      in.get_bytes(value.data(), value.size() * sizeof(Element));
    else
      for (Element& element : value) read(in, element);
  } else if constexpr (is_one_of<T, std::optional>) {
    bool has_value = false;
    read(in, has_value);
    value.reset();
    if (has_value) read(in, value.emplace());
  } else if constexpr (is_one_of<T, std::variant>) {
    read_alternative(in, in.get<uint8_t>(), value);
  } else {
    std::apply([&](auto&... field) { (read(in, field), ...); }, fields_of(value));
    if constexpr (requires { expect_valid(value); }) expect_valid(value);
  }
}

// Calls f(name, field) for the fields of an aggregate, in their order.
template <typename T, typename F>
constexpr void for_each(T& of, F&& f) {
  constexpr auto known = names<std::remove_const_t<T>>();
  [&]<size_t... i>(std::index_sequence<i...>) {
    (f(known[i], std::get<i>(fields_of(of))), ...);
  }
  (std::make_index_sequence<known.size()>());
}

template <typename T>
concept Message = std::is_aggregate_v<T> || fields::is_one_of<T, std::variant>;

}  // namespace fields

template <fields::Message T>
std::string to_bytes(const T& message) {
  ByteWriter out;
  fields::write(out, message);
  return out.take();
}

// The whole of `bytes`; `what` names them in errors: "a batch". Throws Error on anything malformed.
template <fields::Message T>
T from_bytes(std::string_view bytes, const char* what) {
  ByteReader in(bytes, what);
  T message{};
  fields::read(in, message);
  in.expect_end();
  return message;
}

}  // namespace invar
