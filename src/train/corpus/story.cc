#include "train/corpus/story.h"

#include <algorithm>

#include "train/corpus/phrase.h"
#include "train/corpus/plots.h"
#include "train/corpus/words.h"

namespace invar::corpus {

namespace {

// The pronouns of somebody, small and capital: prefix + "he", "He", "his", "His", "him".
void set_pronouns(Phrases& p, const std::string& prefix, bool female) {
  p.set(prefix + "he", female ? "she" : "he");
  p.set(prefix + "He", female ? "She" : "He");
  p.set(prefix + "his", female ? "her" : "his");
  p.set(prefix + "His", female ? "Her" : "His");
  p.set(prefix + "him", female ? "her" : "him");
}

// Sets the name, the kind and the pronouns of somebody whose name is not among `taken`.
void set_person(Phrases& p, Random& random, const std::string& what, const std::string& prefix,
                std::vector<std::string>& taken) {
  const bool female = random.one_in(2), is_animal = random.one_in(3);
  std::string name;
  do {
    name = is_animal ? random.pick(kAnimalNames)
           : female  ? random.pick(kGirls)
                     : random.pick(kBoys);
  } while (std::find(taken.begin(), taken.end(), name) != taken.end());
  taken.push_back(name);
  p.set(what, name);
  p.set(what + "_kind", is_animal ? random.pick(kAnimals) : female ? "girl" : "boy");
  p.set(what + "_trait", random.pick(kTraits));
  set_pronouns(p, prefix, female);
}

std::string number_word(int number) {
  return std::string(kNumbers[number]);
}

// Everything that one episode may name.
void set_episode(Phrases& p, Random& random, std::vector<std::string> taken) {
  const auto set = [&](const char* name, const auto& words) { p.set(name, random.pick(words)); };
  set("toy", kToys), set("color", kColors), set("in_place", kPlaces), set("room", kRooms);
  set("hiding", kHidingPlaces), set("food", kFoods), set("cake", kCakes);
  set("ingredient", kIngredients), set("flower", kFlowers), set("skill", kSkills);
  set("weather", kWeathers), set("day", kDays), set("daypart", kDayparts), set("season", kSeasons);
  set("thing", kThings), set("pet", kPets), set("pet_name", kPetNames), set("animal", kAnimals);
  set("shelter", kShelters), set("shelter2", kBuildings), set("the_goal", kGoals);
  set("stuck", kTraps), set("neighbor", kNeighbors), set("field_word", kLands);
  do {
    set("in_place2", kPlaces);
  } while (p.get("in_place2") == p.get("in_place"));
  p.set("foods", plural(p.get("food")));
  p.set("number", number_word(random.between(2, 9)));
  p.set("number_cap", capitalized(p.get("number")));
  const int count = random.between(4, 12), sold = random.between(1, count - 2);
  p.set("count", number_word(count));
  p.set("sold", number_word(sold));
  p.set("left", number_word(count - sold));
  set_person(p, random, "stranger", "s", taken);
}

void set_world(Phrases& p, Random& random, std::vector<std::string>& taken) {
  set_person(p, random, "hero", "", taken);
  set_person(p, random, "friend", "f", taken);
  const bool female = random.one_in(2);
  p.set("elder_name", female ? random.pick(kWomen) : random.pick(kMen));
  set_pronouns(p, "e", female);
  p.set("town", random.pick(kTowns));
}

constexpr const char* kOpening =
    "[Once upon a time|Long ago|One {weather} {daypart}|In {season}|Not far from {town}|In "
    "{town}|Once, on a {weather} {daypart}], there [was|lived] {a hero_trait} {hero_kind} named "
    "{hero}. [{He} lived with {elder_name} in [a small|a big|{a color}|a cozy] house {in_place2}. "
    "|{He} "
    "liked to [play|be] {in_place2}. |]{hero} had a friend, {a friend_trait} {friend_kind} named "
    "{friend}. [They met almost every day. |They were always together. |]";

constexpr const char* kNextOpening =
    "[The next {daypart}|A few days later|On the following {day}|In the week after that|One "
    "{weather} "
    "{daypart} in {season}], {hero} and {friend} [met|were together|sat {in_place2}] again. ";

constexpr QuestionPattern kAboutPeople[] = {
    {"Who was {hero}?", "{hero} was {a hero_trait} {hero_kind}."},
    {"Who was {hero}'s friend?", "{hero}'s friend was {friend}."},
    {"What kind of [animal or child|creature] was {friend}?", "{friend} was {a friend_kind}."},
    {"How is {friend} described?", "{friend} is described as {friend_trait}."},
};

}  // namespace

Story make_story(Random& random, int most_episodes) {
  Phrases p(random);
  std::vector<std::string> taken;
  set_world(p, random, taken);
  Story story{.hero = p.get("hero"), .hero_kind = p.get("hero_kind")};
  const int episodes = most_episodes > 1 && random.one_in(3) ? 2 : 1;
  int before = -1;
  for (int i = 0; i < episodes; ++i) {
    set_episode(p, random, taken);
    int plot = 0;
    do {
      plot = random.below(static_cast<int>(kPlotCount));
    } while (plot == before);
    before = plot;
    if (i == 0) story.about = p.fragment(kPlots[plot].about);
    if (i > 0) story.text += "\n\n";
    story.text += p(std::string(i == 0 ? kOpening : kNextOpening) + kPlots[plot].text);
    // Names in a plot mean other things in the next, so what can be asked is asked of the last.
    if (i + 1 == episodes)
      for (const QuestionPattern& q : kPlots[plot].questions)
        story.questions.push_back({p(q.question), p(q.answer)});
  }
  for (const QuestionPattern& q : kAboutPeople)
    story.questions.push_back({p(q.question), p(q.answer)});
  random.shuffle(story.questions);
  return story;
}

}  // namespace invar::corpus
