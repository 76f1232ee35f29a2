// The words of the corpus's world.
#pragma once

#include <string_view>

namespace invar::corpus {

using Words = std::string_view[];

inline constexpr Words kGirls = {
    "Mia",   "Anna",  "Lily",   "Rosa",   "Emma",   "Nora",  "Clara",  "Ella",  "Sofia", "Ruby",
    "Grace", "Zoe",   "Maya",   "Alice",  "Lucy",   "Jane",  "Molly",  "Nina",  "Ivy",   "Tess",
    "Amy",   "Julia", "Hanna",  "Olive",  "Freya",  "Greta", "Paula",  "Wendy", "Daisy", "Holly",
    "Laura", "Helen", "Marie",  "Sarah",  "Eva",    "Iris",  "Joan",   "Kate",  "Leah",  "Martha",
    "Nadia", "Pearl", "Rachel", "Stella", "Thea",   "Vera",  "Yara",   "Agnes", "Bella", "Cora",
    "Dora",  "Edith", "Flora",  "Gloria", "Hilda",  "Irene", "Judy",   "Karen", "Linda", "Mona",
    "Norma", "Opal",  "Petra",  "Robin",  "Sylvia", "Tilda", "Ursula", "Viola", "Wanda", "Zelda"};
inline constexpr Words kBoys = {
    "Tom",    "Ben",     "Max",     "Leo",    "Sam",    "Jack",   "Finn",    "Noah",    "Oscar",
    "Paul",   "Adam",    "Eric",    "Felix",  "Hugo",   "Jonas",  "Karl",    "Liam",    "Milo",
    "Nico",   "Otto",    "Theo",    "Peter",  "Simon",  "Toby",   "Victor",  "Will",    "Alex",
    "Anton",  "David",   "Henry",   "Aaron",  "Bruce",  "Caleb",  "Daniel",  "Edgar",   "Frank",
    "George", "Harold",  "Isaac",   "Jacob",  "Kevin",  "Lucas",  "Martin",  "Nathan",  "Oliver",
    "Philip", "Quentin", "Robert",  "Samuel", "Thomas", "Ulrich", "Vincent", "Walter",  "Xaver",
    "Arthur", "Bernard", "Charles", "Dennis", "Emil",   "Fred",   "Gustav",  "Herbert", "Ivan",
    "Joseph", "Konrad",  "Louis",   "Moritz", "Norman", "Rupert", "Stefan"};
inline constexpr Words kAnimalNames = {
    "Pip",      "Hazel",   "Bruno",  "Dot",     "Biscuit", "Maple",   "Pepper",   "Rusty",
    "Willow",   "Button",  "Clover", "Juniper", "Mossy",   "Nutmeg",  "Poppy",    "Puddle",
    "Sandy",    "Sunny",   "Tango",  "Thistle", "Acorn",   "Bramble", "Chestnut", "Dusty",
    "Ember",    "Fern",    "Gizmo",  "Honey",   "Inky",    "Jasper",  "Kiwi",     "Lilac",
    "Marzipan", "Nibbles", "Olli",   "Pebble",  "Quill",   "Rosie",   "Scamp",    "Twig",
    "Velvet",   "Whisker", "Ziggy",  "Bumble",  "Crumb",   "Domino",  "Fidget",   "Noodle",
    "Pickle",   "Muffin"};
inline constexpr Words kAnimals = {
    "rabbit", "fox",     "bear",   "mouse",  "duck",    "squirrel", "hedgehog", "frog",
    "turtle", "badger",  "beaver", "otter",  "goat",    "lamb",     "owl",      "mole",
    "goose",  "raccoon", "deer",   "weasel", "ferret",  "pony",     "donkey",   "crow",
    "robin",  "sparrow", "lizard", "snail",  "hamster", "lynx",     "marmot",   "heron",
    "pigeon", "swan",    "piglet", "calf",   "stork",   "chipmunk"};
inline constexpr Words kPets = {"kitten",   "puppy",   "bird",   "rabbit",     "duckling",
                                "hedgehog", "lamb",    "piglet", "guinea pig", "parrot",
                                "tortoise", "hamster", "pony",   "calf"};
inline constexpr Words kTraits = {
    "kind",     "brave",      "curious",  "clever",   "cheerful", "gentle", "quiet",   "shy",
    "careful",  "lively",     "patient",  "friendly", "helpful",  "proud",  "playful", "honest",
    "polite",   "thoughtful", "wise",     "funny",    "dreamy",   "eager",  "modest",  "stubborn",
    "generous", "calm",       "sensible", "daring",   "lonely",   "merry",  "hopeful", "bold"};
inline constexpr Words kColors = {"red",   "blue",  "green", "yellow", "orange", "purple",
                                  "white", "black", "brown", "pink",   "silver", "golden"};
inline constexpr Words kToys = {
    "ball",       "kite",         "doll",          "drum",        "book",
    "hat",        "scarf",        "boat",          "train",       "puzzle",
    "lantern",    "whistle",      "bell",          "umbrella",    "basket",
    "teddy bear", "robot",        "wagon",         "flute",       "mitten",
    "backpack",   "paintbrush",   "marble",        "puppet",      "yo-yo",
    "slingshot",  "trumpet",      "guitar",        "telescope",   "skateboard",
    "sled",       "balloon",      "crayon",        "magnet",      "necklace",
    "ribbon",     "helmet",       "tricycle",      "rattle",      "hoop",
    "jigsaw",     "violin",       "pinwheel",      "compass",     "notebook",
    "feather",    "bracelet",     "rocking horse", "fishing rod", "magnifying glass",
    "music box",  "picture book", "paper plane"};
// With the words that say where.
inline constexpr Words kPlaces = {"in the park",
                                  "in the garden",
                                  "in the forest",
                                  "in the meadow",
                                  "at the beach",
                                  "in the field",
                                  "in the orchard",
                                  "at the pond",
                                  "at the playground",
                                  "on the farm",
                                  "at the market",
                                  "on the hill",
                                  "by the river",
                                  "in the village",
                                  "by the old mill",
                                  "near the bridge",
                                  "behind the school",
                                  "by the lake",
                                  "in the old quarry",
                                  "under the chestnut trees",
                                  "by the waterfall",
                                  "on the sand dunes",
                                  "in the vineyard",
                                  "at the railway station",
                                  "at the windmill",
                                  "in the churchyard",
                                  "on the island",
                                  "at the harbor",
                                  "in the courtyard",
                                  "by the fountain",
                                  "at the edge of the woods",
                                  "along the canal"};
inline constexpr Words kRooms = {
    "kitchen",      "attic",  "bedroom",     "barn",     "library", "cellar",
    "hallway",      "shed",   "living room", "workshop", "pantry",  "greenhouse",
    "laundry room", "stable", "dining room", "nursery",  "study",   "garage"};
inline constexpr Words kHidingPlaces = {
    "under the bed",           "behind the sofa",        "under an old blanket",
    "behind the door",         "in the tall grass",      "under a bench",
    "beside the big oak",      "behind a bush",          "inside a basket",
    "under a pile of leaves",  "on top of the shelf",    "between two stones",
    "next to the well",        "inside an empty barrel", "under the stairs",
    "behind the flower pots",  "behind the curtain",     "under the carpet",
    "inside a watering can",   "on the window sill",     "below the bridge",
    "behind the stove",        "in a rabbit hole",       "beneath the table",
    "inside an old boot",      "under the ladder",       "behind a haystack",
    "in the letter box",       "between the books",      "inside a flower pot",
    "on the roof of the shed", "under the rose bush"};
inline constexpr Words kFoods = {
    "apple",   "pear",     "carrot",  "cookie",  "sandwich", "muffin",   "plum",   "bun",
    "peach",   "pancake",  "biscuit", "banana",  "cracker",  "doughnut", "waffle", "tomato",
    "potato",  "cucumber", "radish",  "walnut",  "chestnut", "apricot",  "melon",  "lemon",
    "pretzel", "dumpling", "turnip",  "pumpkin", "grape",    "mushroom"};
inline constexpr Words kCakes = {
    "apple cake",      "berry pie",   "honey cake",   "carrot cake",    "plum tart",
    "lemon cake",      "nut bread",   "pumpkin pie",  "cherry tart",    "cheese cake",
    "walnut cake",     "cream roll",  "pear crumble", "chocolate cake", "raisin bread",
    "poppy seed cake", "almond cake", "ginger cake"};
inline constexpr Words kIngredients = {"sugar", "flour",    "butter", "milk",    "honey", "salt",
                                       "yeast", "cinnamon", "cream",  "vanilla", "oil",   "cocoa"};
inline constexpr Words kFlowers = {
    "sunflower", "tulip",     "rose",     "daisy",  "poppy", "lily", "bean",   "marigold", "pansy",
    "violet",    "carnation", "lavender", "orchid", "peony", "iris", "crocus", "thistle"};
inline constexpr Words kWomen = {"Grandmother", "Mother", "Aunt Rosa", "Aunt Clara", "Aunt May"};
inline constexpr Words kMen = {"Grandfather", "Father", "Uncle Karl", "Uncle Otto", "Uncle Joe"};
inline constexpr Words kNeighbors = {
    "Mr. Brown",     "Mrs. Green",    "Mr. Hill",     "Mrs. Park",   "Mr. Stone",
    "Mrs. Reed",     "Mr. Baker",     "Mrs. Wood",    "Mr. Miller",  "Mrs. Fisher",
    "Mr. Carpenter", "Mrs. Gardener", "Mr. Shepherd", "Mrs. Weaver", "Mr. Hunter",
    "Mrs. Potter",   "Mr. Fowler",    "Mrs. Archer",  "Mr. Mason",   "Mrs. Taylor"};
inline constexpr Words kSkills = {
    "swim",          "ride a bicycle", "whistle a song",    "skate",           "climb a rope",
    "juggle",        "tie a bow",      "play the flute",    "bake bread",      "row a boat",
    "paint a horse", "fly a kite",     "sew a shirt",       "whittle a spoon", "play chess",
    "read a map",    "build a fire",   "catch a fish",      "dance a waltz",   "knit a sock",
    "milk a cow",    "plant a tree",   "sail a boat",       "walk on stilts",  "write a poem",
    "draw a castle", "jump rope",      "stand on one hand", "light a lantern", "carve a flute"};
inline constexpr Words kWeathers = {"sunny", "cloudy", "windy", "warm", "cold",   "rainy",
                                    "foggy", "bright", "snowy", "mild", "stormy", "frosty",
                                    "hot",   "gray",   "misty", "calm", "cool",   "golden"};
inline constexpr Words kDays = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                "Friday", "Saturday", "Sunday"};
inline constexpr Words kSeasons = {"spring", "summer", "autumn", "winter"};
inline constexpr Words kNumbers = {"zero",  "one",   "two",  "three", "four",   "five",  "six",
                                   "seven", "eight", "nine", "ten",   "eleven", "twelve"};
inline constexpr Words kPetNames = {
    "Snowball", "Ginger", "Fluffy", "Cookie", "Spot",    "Mimi",     "Coco",  "Tiny",
    "Patch",    "Sugar",  "Lucky",  "Smoky",  "Bubbles", "Cinnamon", "Daffy", "Flash",
    "Goldie",   "Hopper", "Jelly",  "Muffy",  "Peanut",  "Quincy",   "Scout", "Twinkle"};
inline constexpr Words kLands = {"hills", "fields", "valley", "village", "river", "trees"};
inline constexpr Words kDayparts = {"morning", "afternoon", "day", "evening"};
inline constexpr Words kShelters = {
    "a hollow tree", "a small cave",  "an old barn",   "an empty shed",    "a haystack",
    "a wooden hut",  "an old mill",   "a stone tower", "a shepherd's hut", "a bus stop",
    "a boat house",  "a wine cellar", "a garden shed"};
inline constexpr Words kBuildings = {"tree house",     "hut",          "tent",       "castle",
                                     "little house",   "boat",         "raft",       "windmill",
                                     "igloo",          "fortress",     "bird house", "stone oven",
                                     "puppet theater", "wooden bridge"};
inline constexpr Words kGoals = {
    "the old oak",    "the bridge",      "the well",          "the mill",
    "the big stone",  "the school gate", "the church",        "the pond",
    "the lighthouse", "the red barn",    "the market square", "the tall pine",
    "the stone wall", "the castle ruin", "the ferry",         "the last house"};
inline constexpr Words kTraps = {
    "under a stone",   "in a fence",        "between two roots", "in the mud",     "under a branch",
    "in an old net",   "in a crack",        "in a tin can",      "in a bramble",   "beneath a log",
    "in a rusty trap", "between the rocks", "in a muddy hole",   "in a broken pot"};
inline constexpr Words kThings = {
    "cup",    "chair",   "lamp",   "shoe",    "spoon",  "clock",  "pencil", "coat",    "bowl",
    "table",  "glove",   "key",    "stone",   "brush",  "plate",  "jar",    "rope",    "box",
    "leaf",   "coin",    "mirror", "teapot",  "vase",   "basin",  "bucket", "candle",  "curtain",
    "pillow", "blanket", "kettle", "ladle",   "saucer", "stool",  "shelf",  "picture", "pitcher",
    "hammer", "needle",  "button", "broom",   "ladder", "saddle", "anchor", "barrel",  "wheel",
    "window", "bottle",  "napkin", "thimble", "trowel"};
inline constexpr Words kTowns = {
    "Oakville",   "Riverton",    "Milford",   "Ashby",      "Brookside", "Hillcrest",  "Lakewood",
    "Norwick",    "Stonebridge", "Westfield", "Willowdale", "Foxbury",   "Greenfield", "Mapleton",
    "Silverlake", "Thornbury",   "Elmwood",   "Clearwater", "Birchford", "Sandhurst",  "Rosewick",
    "Highbridge", "Otterbank",   "Kingsley",  "Wolfbrook",  "Larkspur"};

}  // namespace invar::corpus
