#include <fmt/format.h>

#include "train/corpus/phrase.h"
#include "train/corpus/tasks.h"
#include "train/corpus/words.h"

namespace invar::corpus {

namespace {

struct Pair {
  const char *first, *second;
};

constexpr Pair kExchanges[] = {
    {"[Hello|Hi|Hello there|Good morning|Good evening][!|.]",
     "Hello! [How can I help you?|Would you like to hear a story?|What can I do for you?]"},
    {"[Who are you?|What are you?|What is your name?|Tell me about yourself.]",
     "I am Invar, a small language model. I can tell stories, answer questions about them, work "
     "out "
     "small sums and copy lists."},
    {"[What can you do?|How can you help me?|Help me.]",
     "I can tell stories, answer questions about them, work out small sums and copy lists and "
     "tables."},
    {"[How are you?|How are you today?]", "I am well, thank you. [How are you?|What shall we do?]"},
    {"[Thank you!|Thanks.|Thank you very much.]", "You are welcome!"},
    {"[Goodbye.|Bye!|Good night.]", "Goodbye! [See you soon.|It was nice to talk to you.]"},
    {"[Are you a person?|Are you human?]", "No, I am a small language model."},
    {"[Do you always give the same answer?|Can I trust that you repeat yourself?]",
     "With the same seed I give the same answer, to the last bit."},
    {"[What is the weather today?|What time is it?|What day is it today?]",
     "I can not know that. I only know what you tell me."},
    {"[How many days does a week have?|How many days are in a week?]", "A week has seven days."},
    {"[How many months does a year have?|How many months are in a year?]",
     "A year has twelve months."},
    {"[Name the four seasons.|What are the seasons?]",
     "The seasons are spring, summer, autumn and winter."},
};

constexpr Pair kOpposites[] = {
    {"big", "small"},   {"hot", "cold"},   {"fast", "slow"},  {"happy", "sad"},   {"old", "young"},
    {"long", "short"},  {"dark", "light"}, {"wet", "dry"},    {"open", "closed"}, {"loud", "quiet"},
    {"heavy", "light"}, {"early", "late"}, {"full", "empty"}, {"near", "far"},    {"high", "low"},
    {"day", "night"},   {"up", "down"},    {"left", "right"}};

constexpr Pair kColorsOf[] = {
    {"grass", "green"},     {"snow", "white"},      {"the sky", "blue"},
    {"a banana", "yellow"}, {"a carrot", "orange"}, {"a plum", "purple"},
    {"coal", "black"},      {"blood", "red"},       {"chocolate", "brown"}};

constexpr Pair kSounds[] = {{"a dog", "barks"},   {"a cat", "meows"},   {"a cow", "moos"},
                            {"a duck", "quacks"}, {"a bee", "buzzes"},  {"a lion", "roars"},
                            {"an owl", "hoots"},  {"a frog", "croaks"}, {"a horse", "neighs"}};

Turn opposite(Random& random) {
  const Pair& pair = random.pick(kOpposites);
  return {fmt::format("What is the opposite of {}?", pair.first),
          fmt::format("The opposite of {} is {}.", pair.first, pair.second)};
}

Turn color_of(Random& random) {
  const Pair& pair = random.pick(kColorsOf);
  return {fmt::format("What color is {}?", pair.first),
          capitalized(fmt::format("{} is {}.", pair.first, pair.second))};
}

Turn sound_of(Random& random) {
  const Pair& pair = random.pick(kSounds);
  return {fmt::format("What sound does {} make?", pair.first),
          capitalized(fmt::format("{} {}.", pair.first, pair.second))};
}

Turn next_day(Random& random) {
  const int day = random.below(7), after = random.one_in(2);
  return {fmt::format("Which day comes {} {}?", after ? "after" : "before", kDays[day]),
          fmt::format("{} comes {} {}.", kDays[(day + (after ? 1 : 6)) % 7],
                      after ? "after" : "before", kDays[day])};
}

Turn counting(Random& random) {
  const int from = random.between(1, 20), to = from + random.between(3, 9);
  std::string numbers;
  for (int i = from; i <= to; ++i) numbers += (i > from ? ", " : "") + std::to_string(i);
  return {fmt::format("Count from {} to {}.", from, to), numbers};
}

Turn spelling(Random& random) {
  const std::string_view word = random.one_in(2) ? random.pick(kThings) : random.pick(kAnimals);
  std::string letters;
  for (const char c : word) letters += (letters.empty() ? "" : "-") + std::string(1, c);
  return {fmt::format("Spell the word \"{}\".", word), letters};
}

}  // namespace

Turn make_talk(Random& random) {
  static constexpr Turn (*kTopics[])(Random&) = {opposite, color_of, sound_of,
                                                 next_day, counting, spelling};
  if (random.one_in(2)) return random.pick(kTopics)(random);
  const Phrases p(random);
  const Pair& pair = random.pick(kExchanges);
  std::string user = p(pair.first);
  return {std::move(user), p(pair.second)};
}

}  // namespace invar::corpus
