// The words of the corpus's world.
#pragma once

#include <string_view>

namespace invar::corpus {

using Words = std::string_view[];

inline constexpr Words kGirls = {"Mia",  "Anna",  "Lily", "Rosa", "Emma",
                                 "Nora", "Clara", "Lucy", "Zoe",  "Alice"};
inline constexpr Words kBoys = {"Tom",  "Ben",  "Max",  "Leo",   "Sam",
                                "Jack", "Finn", "Paul", "Oscar", "Adam"};
inline constexpr Words kAnimalNames = {"Pip",    "Hazel", "Bruno",  "Dot",   "Biscuit",
                                       "Pepper", "Rusty", "Willow", "Sunny", "Clover"};
inline constexpr Words kAnimals = {"rabbit",   "fox",  "bear",   "mouse", "duck",
                                   "squirrel", "frog", "turtle", "owl",   "goat"};
inline constexpr Words kPets = {"kitten", "puppy", "bird", "lamb", "piglet", "hamster"};
inline constexpr Words kTraits = {"kind",  "brave", "curious",  "clever",  "cheerful", "gentle",
                                  "quiet", "shy",   "friendly", "playful", "honest",   "funny"};
inline constexpr Words kColors = {"red",    "blue",  "green", "yellow",
                                  "orange", "white", "black", "brown"};
inline constexpr Words kToys = {"ball", "kite",  "doll", "drum",   "book",       "hat",
                                "boat", "train", "bell", "basket", "teddy bear", "robot"};
// With the words that say where.
inline constexpr Words kPlaces = {
    "in the park", "in the garden", "in the forest", "in the meadow", "at the beach",
    "at the pond", "at the market", "on the hill",   "by the river",  "near the bridge"};
inline constexpr Words kRooms = {"kitchen", "attic", "bedroom", "barn", "cellar", "shed"};
inline constexpr Words kHidingPlaces = {
    "under the bed",      "behind the door",    "in the tall grass", "under a bench",
    "behind a bush",      "between two stones", "next to the well",  "under the stairs",
    "behind the curtain", "inside an old boot"};
inline constexpr Words kFoods = {"apple",  "pear", "carrot", "cookie",  "sandwich",
                                 "muffin", "plum", "bun",    "pancake", "banana"};
inline constexpr Words kCakes = {"apple cake",  "berry pie", "honey cake",
                                 "carrot cake", "plum tart", "nut bread"};
inline constexpr Words kIngredients = {"sugar", "flour", "butter", "milk", "honey", "salt"};
inline constexpr Words kFlowers = {"sunflower", "tulip", "rose", "daisy", "lily", "violet"};
inline constexpr Words kWomen = {"Grandmother", "Mother", "Aunt May"};
inline constexpr Words kMen = {"Grandfather", "Father", "Uncle Joe"};
inline constexpr Words kNeighbors = {"Mr. Brown", "Mrs. Green", "Mr. Hill",
                                     "Mrs. Park", "Mr. Stone",  "Mrs. Reed"};
inline constexpr Words kSkills = {"swim",   "ride a bicycle", "skate",      "climb a rope",
                                  "juggle", "play the flute", "row a boat", "fly a kite"};
inline constexpr Words kWeathers = {"sunny", "cloudy", "windy",  "warm",
                                    "cold",  "rainy",  "bright", "snowy"};
inline constexpr Words kDays = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                "Friday", "Saturday", "Sunday"};
inline constexpr Words kSeasons = {"spring", "summer", "autumn", "winter"};
inline constexpr Words kNumbers = {"zero",  "one",   "two",  "three", "four",   "five",  "six",
                                   "seven", "eight", "nine", "ten",   "eleven", "twelve"};
inline constexpr Words kPetNames = {"Snowball", "Ginger", "Fluffy", "Spot", "Coco", "Patch"};
inline constexpr Words kLands = {"hills", "fields", "valley", "village", "river", "trees"};
inline constexpr Words kDayparts = {"morning", "afternoon", "day", "evening"};
inline constexpr Words kShelters = {"a hollow tree", "a small cave", "an old barn", "an empty shed",
                                    "a wooden hut"};
inline constexpr Words kBuildings = {"tree house", "hut", "tent", "castle", "raft"};
inline constexpr Words kGoals = {"the old oak", "the bridge",      "the well",
                                 "the mill",    "the school gate", "the red barn"};
inline constexpr Words kTraps = {"under a stone", "in a fence", "between two roots", "in the mud",
                                 "in an old net"};
inline constexpr Words kThings = {"cup",    "chair", "lamp", "shoe", "spoon", "clock",
                                  "pencil", "bowl",  "key",  "box",  "leaf",  "coin"};
inline constexpr Words kTowns = {"Oakville", "Riverton",  "Milford",
                                 "Ashby",    "Brookside", "Lakewood"};

}  // namespace invar::corpus
