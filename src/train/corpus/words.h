// The words of the corpus's world.
#pragma once

#include <string_view>

namespace invar::corpus {

using Words = std::string_view[];

inline constexpr Words kGirls = {
    "Mia",   "Anna",  "Lily",  "Rosa",  "Emma",  "Nora",  "Clara", "Ella",  "Sofia", "Ruby",
    "Grace", "Zoe",   "Maya",  "Alice", "Lucy",  "Jane",  "Molly", "Nina",  "Ivy",   "Tess",
    "Amy",   "Julia", "Hanna", "Olive", "Freya", "Greta", "Paula", "Wendy", "Daisy", "Holly"};
inline constexpr Words kBoys = {
    "Tom",  "Ben",   "Max",   "Leo",  "Sam",    "Jack", "Finn", "Noah",  "Oscar", "Paul",
    "Adam", "Eric",  "Felix", "Hugo", "Jonas",  "Karl", "Liam", "Milo",  "Nico",  "Otto",
    "Theo", "Peter", "Simon", "Toby", "Victor", "Will", "Alex", "Anton", "David", "Henry"};
inline constexpr Words kAnimalNames = {"Pip",    "Hazel",   "Bruno", "Dot",    "Biscuit",
                                       "Maple",  "Pepper",  "Rusty", "Willow", "Button",
                                       "Clover", "Juniper", "Mossy", "Nutmeg", "Poppy",
                                       "Puddle", "Sandy",   "Sunny", "Tango",  "Thistle"};
inline constexpr Words kAnimals = {"rabbit",   "fox",  "bear",   "mouse",  "duck",   "squirrel",
                                   "hedgehog", "frog", "turtle", "badger", "beaver", "otter",
                                   "goat",     "lamb", "owl",    "mole",   "goose",  "raccoon"};
inline constexpr Words kPets = {"kitten",   "puppy",    "bird", "rabbit",
                                "duckling", "hedgehog", "lamb"};
inline constexpr Words kTraits = {"kind",    "brave", "curious", "clever", "cheerful", "gentle",
                                  "quiet",   "shy",   "careful", "lively", "patient",  "friendly",
                                  "helpful", "proud", "playful", "honest"};
inline constexpr Words kColors = {"red",   "blue",  "green", "yellow", "orange", "purple",
                                  "white", "black", "brown", "pink",   "silver", "golden"};
inline constexpr Words kToys = {"ball",  "kite",     "doll",     "drum",       "book",    "hat",
                                "scarf", "boat",     "train",    "puzzle",     "lantern", "whistle",
                                "bell",  "umbrella", "basket",   "teddy bear", "robot",   "wagon",
                                "flute", "mitten",   "backpack", "paintbrush", "marble"};
// With the words that say where.
inline constexpr Words kPlaces = {
    "in the park",     "in the garden",     "in the forest", "in the meadow",     "at the beach",
    "in the field",    "in the orchard",    "at the pond",   "at the playground", "on the farm",
    "at the market",   "on the hill",       "by the river",  "in the village",    "by the old mill",
    "near the bridge", "behind the school", "by the lake"};
inline constexpr Words kRooms = {"kitchen", "attic",   "bedroom", "barn",        "library",
                                 "cellar",  "hallway", "shed",    "living room", "workshop"};
inline constexpr Words kHidingPlaces = {
    "under the bed",          "behind the sofa",        "under an old blanket",
    "behind the door",        "in the tall grass",      "under a bench",
    "beside the big oak",     "behind a bush",          "inside a basket",
    "under a pile of leaves", "on top of the shelf",    "between two stones",
    "next to the well",       "inside an empty barrel", "under the stairs",
    "behind the flower pots"};
inline constexpr Words kFoods = {"apple", "pear", "carrot", "cookie",  "sandwich", "muffin",
                                 "plum",  "bun",  "peach",  "pancake", "biscuit",  "banana"};
inline constexpr Words kCakes = {"apple cake", "berry pie",  "honey cake", "carrot cake",
                                 "plum tart",  "lemon cake", "nut bread",  "pumpkin pie"};
inline constexpr Words kIngredients = {"sugar", "flour", "butter", "milk", "honey", "salt"};
inline constexpr Words kFlowers = {"sunflower", "tulip", "rose", "daisy", "poppy", "lily", "bean"};
inline constexpr Words kWomen = {"Grandmother", "Mother", "Aunt Rosa", "Aunt Clara", "Aunt May"};
inline constexpr Words kMen = {"Grandfather", "Father", "Uncle Karl", "Uncle Otto", "Uncle Joe"};
inline constexpr Words kNeighbors = {"Mr. Brown", "Mrs. Green", "Mr. Hill",  "Mrs. Park",
                                     "Mr. Stone", "Mrs. Reed",  "Mr. Baker", "Mrs. Wood"};
inline constexpr Words kSkills = {
    "swim",      "ride a bicycle", "whistle a song", "skate",      "climb a rope",  "juggle",
    "tie a bow", "play the flute", "bake bread",     "row a boat", "paint a horse", "fly a kite"};
inline constexpr Words kWeathers = {"sunny", "cloudy", "windy",  "warm",  "cold",
                                    "rainy", "foggy",  "bright", "snowy", "mild"};
inline constexpr Words kDays = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                "Friday", "Saturday", "Sunday"};
inline constexpr Words kSeasons = {"spring", "summer", "autumn", "winter"};
inline constexpr Words kNumbers = {"zero",  "one",   "two",  "three", "four",   "five",  "six",
                                   "seven", "eight", "nine", "ten",   "eleven", "twelve"};
inline constexpr Words kPetNames = {"Snowball", "Ginger", "Fluffy", "Cookie", "Spot",  "Mimi",
                                    "Coco",     "Tiny",   "Patch",  "Sugar",  "Lucky", "Smoky"};
inline constexpr Words kLands = {"hills", "fields", "valley", "village", "river", "trees"};
inline constexpr Words kDayparts = {"morning", "afternoon", "day", "evening"};
inline constexpr Words kShelters = {"a hollow tree", "a small cave", "an old barn", "an empty shed",
                                    "a haystack",    "a wooden hut", "an old mill"};
inline constexpr Words kBuildings = {"tree house", "hut", "tent", "castle", "little house", "boat"};
inline constexpr Words kGoals = {"the old oak",   "the bridge",      "the well",   "the mill",
                                 "the big stone", "the school gate", "the church", "the pond"};
inline constexpr Words kTraps = {"under a stone", "in a fence",     "between two roots",
                                 "in the mud",    "under a branch", "in an old net",
                                 "in a crack",    "in a tin can"};
inline constexpr Words kThings = {"cup",   "chair", "lamp",  "shoe",  "spoon", "clock", "pencil",
                                  "coat",  "bowl",  "table", "glove", "key",   "stone", "brush",
                                  "plate", "jar",   "rope",  "box",   "leaf",  "coin"};
inline constexpr Words kTowns = {"Oakville",  "Riverton", "Milford", "Ashby",       "Brookside",
                                 "Hillcrest", "Lakewood", "Norwick", "Stonebridge", "Westfield"};

}  // namespace invar::corpus
