#include <fmt/format.h>

#include "train/corpus/phrase.h"
#include "train/corpus/tasks.h"
#include "train/corpus/words.h"

namespace invar::corpus {

namespace {

// The end of an answer.
std::string answer(const std::string& steps, int value) {
  return fmt::format("{}The answer is {}.", steps, value);
}

std::string question(Random& random, const std::string& expression) {
  static constexpr const char* kForms[] = {"What is {}?", "Calculate {}.", "{} = ?",
                                           "How much is {}?"};
  return fmt::format(fmt::runtime(random.pick(kForms)), expression);
}

// Column by column from the right, as at school.
std::string add_by_columns(int a, int b) {
  std::string steps;
  int carry = 0;
  for (int x = a, y = b; x > 0 || y > 0; x /= 10, y /= 10) {
    const int sum = x % 10 + y % 10 + carry;
    steps += fmt::format("{} + {}{} = {}", x % 10, y % 10, carry ? " + 1" : "", sum);
    const bool last = x < 10 && y < 10;
    carry = sum >= 10;
    steps += last ? ".\n" : fmt::format(", write {}{}.\n", sum % 10, carry ? ", carry 1" : "");
  }
  return steps;
}

std::string subtract_by_columns(int a, int b) {
  std::string steps;
  int borrow = 0;
  for (int x = a, y = b; x > 0; x /= 10, y /= 10) {
    const int top = x % 10, down = y % 10 + borrow;
    const bool borrows = top < down;
    steps +=
        fmt::format("{}{} - {}{} = {}{}\n", borrows ? "1" : "", top, y % 10, borrow ? " - 1" : "",
                    top + (borrows ? 10 : 0) - down, borrows ? ", borrow 1." : ".");
    borrow = borrows;
  }
  return steps;
}

int up_to_three_digits(Random& random) {
  static constexpr int kLargest[] = {9, 99, 99, 999};
  return random.between(1, random.pick(kLargest));
}

Turn addition(Random& random) {
  const int a = up_to_three_digits(random), b = up_to_three_digits(random);
  return {question(random, fmt::format("{} + {}", a, b)), answer(add_by_columns(a, b), a + b)};
}

Turn subtraction(Random& random) {
  const int a = up_to_three_digits(random), b = random.between(0, a);
  return {question(random, fmt::format("{} - {}", a, b)), answer(subtract_by_columns(a, b), a - b)};
}

Turn multiplication(Random& random) {
  const int a = random.between(2, 99), b = random.between(2, 9), tens = a / 10 * 10;
  std::string steps;
  if (a > 10)
    steps = fmt::format("{} * {} = {}.\n{} * {} = {}.\n{} + {} = {}.\n", tens, b, tens * b,
                        a - tens, b, (a - tens) * b, tens * b, (a - tens) * b, a * b);
  return {question(random, fmt::format("{} * {}", a, b)), answer(steps, a * b)};
}

Turn word_problem(Random& random) {
  Phrases p(random);
  const int a = random.between(3, 60), b = random.between(2, 30), small = random.between(1, a);
  p.set("x", random.one_in(2) ? random.pick(kGirls) : random.pick(kBoys));
  p.set("y", random.pick(kAnimalNames));
  p.set("things", plural(random.one_in(2) ? random.pick(kFoods) : random.pick(kThings)));
  p.set("a", std::to_string(a)), p.set("b", std::to_string(b)), p.set("s", std::to_string(small));
  if (random.one_in(2))
    return {
        p("{x} has {a} {things}. [{y} gives {x} {b} more|{x} finds {b} more|{x} buys {b} more]. "
          "How many {things} does {x} have now?"),
        answer(fmt::format("{} + {} = {}.\n", a, b, a + b), a + b)};
  return {p("{x} has {a} {things} and [gives {s} of them to {y}|loses {s} of them|sells {s} of "
            "them]. How many {things} does {x} have left?"),
          answer(fmt::format("{} - {} = {}.\n", a, small, a - small), a - small)};
}

Turn comparison(Random& random) {
  const int a = up_to_three_digits(random), b = up_to_three_digits(random);
  const bool larger = random.one_in(2);
  return {fmt::format("Which number is {}, {} or {}?", larger ? "larger" : "smaller", a, b),
          answer("", larger ? std::max(a, b) : std::min(a, b))};
}

}  // namespace

Turn make_arithmetic(Random& random) {
  switch (random.below(10)) {
    case 0:
    case 1:
    case 2:
      return addition(random);
    case 3:
    case 4:
    case 5:
      return subtraction(random);
    case 6:
    case 7:
      return multiplication(random);
    case 8:
      return word_problem(random);
    default:
      return comparison(random);
  }
}

}  // namespace invar::corpus
