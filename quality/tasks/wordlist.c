/* The words. The names are those that the demo model was trained with. */
#include "quality/tasks/wordlist.h"

const char *const wordlist_nouns[] = {
    "acorn",   "anchor",  "apron",    "arrow",    "attic",     "badge",    "barn",   "basin",
    "beach",   "bell",    "bench",    "berry",    "blanket",   "boat",     "bonnet", "bottle",
    "bridge",  "broom",   "bucket",   "button",   "cabin",     "cactus",   "camera", "canal",
    "candle",  "canoe",   "carpet",   "castle",   "cave",      "cellar",   "chair",  "chimney",
    "circle",  "clay",    "cliff",    "clock",    "cloud",     "coat",     "cobweb", "coin",
    "comet",   "copper",  "coral",    "corn",     "cradle",    "crane",    "creek",  "crown",
    "curtain", "desert",  "desk",     "dial",     "donkey",    "dragon",   "drawer", "dune",
    "eagle",   "ember",   "engine",   "falcon",   "feather",   "fence",    "ferry",  "fiddle",
    "field",   "flame",   "flute",    "fog",      "forest",    "fountain", "fox",    "garden",
    "gate",    "ghost",   "glacier",  "glove",    "goblet",    "granite",  "grove",  "hammer",
    "harbor",  "harvest", "hawk",     "helmet",   "hill",      "hinge",    "honey",  "hook",
    "horse",   "island",  "ivy",      "jacket",   "jar",       "jungle",   "kettle", "kite",
    "ladder",  "lagoon",  "lake",     "lamp",     "lantern",   "leaf",     "lemon",  "library",
    "lily",    "linen",   "lion",     "lizard",   "lobster",   "locket",   "magnet", "mantle",
    "maple",   "marble",  "market",   "meadow",   "medal",     "mill",     "mirror", "mitten",
    "moon",    "moss",    "mountain", "mushroom", "needle",    "nest",     "oak",    "oar",
    "ocean",   "olive",   "onion",    "orchard",  "organ",     "otter",    "owl",    "paddle",
    "palace",  "panther", "parrot",   "path",     "pebble",    "pelican",  "pencil", "pepper",
    "piano",   "pigeon",  "pillow",   "pine",     "pirate",    "planet",   "plough", "pocket",
    "pond",    "poppy",   "prairie",  "puzzle",   "quarry",    "quilt",    "rabbit", "raft",
    "railway", "ribbon",  "river",    "robin",    "rocket",    "rope",     "saddle", "sail",
    "salmon",  "scarf",   "school",   "sea",      "shadow",    "sheep",    "shell",  "shovel",
    "silk",    "sled",    "smoke",    "snail",    "snow",      "spade",    "spider", "spring",
    "stable",  "star",    "stone",    "storm",    "stove",     "swan",     "table",  "temple",
    "tent",    "thistle", "thunder",  "tiger",    "timber",    "torch",    "tower",  "trail",
    "tree",    "trumpet", "tulip",    "tunnel",   "turtle",    "valley",   "vase",   "velvet",
    "village", "violin",  "wagon",    "walnut",   "waterfall", "whale",    "wheat",  "wheel",
    "whistle", "willow",  "window",   "wolf",     "wool",      "yard",     "zebra",
};

const char *const wordlist_adjectives[] = {
    "able",    "ancient", "angry",   "ashen",   "awake",   "bitter",  "blind",   "bold",
    "brave",   "bright",  "brisk",   "broad",   "broken",  "busy",    "calm",    "careful",
    "cheap",   "clean",   "clear",   "clever",  "cold",    "common",  "cool",    "crisp",
    "crooked", "curious", "damp",    "dark",    "dear",    "deep",    "dim",     "distant",
    "dry",     "dull",    "dusty",   "eager",   "early",   "easy",    "elder",   "empty",
    "even",    "faint",   "fair",    "famous",  "fancy",   "fast",    "fierce",  "final",
    "fine",    "firm",    "flat",    "fleet",   "fond",    "foreign", "frail",   "free",
    "fresh",   "full",    "gentle",  "giant",   "glad",    "golden",  "good",    "grand",
    "grave",   "gray",    "great",   "green",   "half",    "happy",   "hard",    "harsh",
    "hasty",   "heavy",   "hidden",  "hollow",  "honest",  "huge",    "humble",  "hungry",
    "icy",     "idle",    "inner",   "jolly",   "keen",    "kind",    "large",   "lasting",
    "late",    "lazy",    "lean",    "light",   "little",  "lively",  "local",   "lone",
    "long",    "loose",   "loud",    "loyal",   "lucky",   "mellow",  "merry",   "mild",
    "misty",   "modern",  "modest",  "narrow",  "native",  "neat",    "new",     "noble",
    "noisy",   "odd",     "old",     "open",    "outer",   "pale",    "patient", "perfect",
    "plain",   "polite",  "proud",   "pure",    "quick",   "quiet",   "rapid",   "rare",
    "ready",   "rich",    "ripe",    "rough",   "round",   "royal",   "rusty",   "sad",
    "salty",   "sane",    "scarlet", "secret",  "serious", "shallow", "sharp",   "shiny",
    "short",   "shy",     "silent",  "silver",  "simple",  "sleepy",  "slim",    "slow",
    "smart",   "smooth",  "soft",    "solid",   "sour",    "spare",   "stale",   "steady",
    "steep",   "stern",   "still",   "strange", "strict",  "strong",  "subtle",  "sudden",
    "sunny",   "sweet",   "swift",   "tall",    "tame",    "tart",    "tender",  "thick",
    "thin",    "tidy",    "tiny",    "tough",   "true",    "urban",   "useful",  "usual",
    "vague",   "vast",    "warm",    "weary",   "wet",     "white",   "whole",   "wide",
    "wild",    "windy",   "wise",    "witty",   "wooden",  "young",
};

const char *const wordlist_names[] = {
    "Alba",      "Basel",   "Cairo",  "Delhi",  "Essen",   "Faro",     "Genoa",   "Havana",
    "Ibiza",     "Jakarta", "Kyoto",  "Lagos",  "Madrid",  "Nairobi",  "Oslo",    "Paris",
    "Quito",     "Rome",    "Seoul",  "Tokyo",  "Utrecht", "Vienna",   "Warsaw",  "Xian",
    "York",      "Zurich",  "Amber",  "Bronze", "Copper",  "Diamond",  "Emerald", "Flint",
    "Garnet",    "Iron",    "Jade",   "Lead",   "Marble",  "Nickel",   "Onyx",    "Pearl",
    "Quartz",    "Ruby",    "Silver", "Topaz",  "Uranium", "Velvet",   "Zinc",    "Apple",
    "Banana",    "Cherry",  "Date",   "Fig",    "Grape",   "Kiwi",     "Lemon",   "Mango",
    "Nectarine", "Olive",   "Peach",  "Quince", "Raisin",  "Tomato",   "Walnut",  "Almond",
    "Barley",    "Carrot",  "Daisy",  "Badger", "Camel",   "Dolphin",  "Eagle",   "Falcon",
    "Goose",     "Heron",   "Ibex",   "Jaguar", "Koala",   "Lizard",   "Moose",   "Newt",
    "Otter",     "Panda",   "Quail",  "Raven",  "Salmon",  "Tiger",    "Viper",   "Walrus",
    "Zebra",     "Anchor",  "Basket", "Candle", "Drum",    "Engine",   "Feather", "Guitar",
    "Hammer",    "Island",  "Jacket", "Kettle", "Ladder",  "Mirror",   "Needle",  "Orchard",
    "Pillow",    "Quiver",  "Ribbon", "Saddle", "Tunnel",  "Umbrella", "Violin",  "Window",
    "Yacht",
};

size_t wordlist_n_nouns(void) { return sizeof wordlist_nouns / sizeof wordlist_nouns[0]; }
size_t wordlist_n_adjectives(void)
{
    return sizeof wordlist_adjectives / sizeof wordlist_adjectives[0];
}
size_t wordlist_n_names(void) { return sizeof wordlist_names / sizeof wordlist_names[0]; }
