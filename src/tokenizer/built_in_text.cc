#include "tokenizer/make_tokenizer.h"

namespace invar {

static constexpr const char* kText =
    R"(The lighthouse stood at the end of a long road, where the land gave way to the sea. Every evening the keeper
climbed ninety-six steps, opened the small iron door and lit the lamp. Ships far out on the water saw the light and
knew where they were. Nobody asked how the lamp worked; it was enough that it burned every night, in summer and in
winter, in calm weather and in storms.

One morning a young woman came to the house with a question. "Why does the same lamp look different from two ships?"
she asked. The keeper thought about it for a while. "Because they stand in different places," he said. "But the lamp
doesn't know about the ships. It gives the same light to each of them, whether there is one ship on the water or a
hundred." She wrote that down in a little green book, and she never forgot it.

When we add a list of numbers on paper, the order of the numbers does not matter. When a machine adds them, it may.
Each sum is rounded before the next number is added, and a small error stays behind. Add the same numbers in another
order and the error is another one. Most people will never notice. Somebody who must show later how an answer came
about will notice at once, because the last digit of the result has changed and nothing else has.

There is a simple cure: always add in the same order. It sounds easy, yet many programs choose an order by looking at
how much work there is, how many threads are free, or what the other users want at this moment. Such a program is fast
but it cannot keep a promise. A careful program fixes the order first and then looks for speed inside that order. It
takes more thought, and it can be just as fast.

How to bake a plain loaf of bread: mix 500 grams of flour with 350 grams of water, 10 grams of salt and 5 grams of
yeast. Knead the dough for ten minutes, cover the bowl with a cloth and let it rest until it has doubled in size, which
takes about an hour in a warm kitchen. Shape the loaf, let it rest again for forty minutes, and bake it at 230 degrees
until the crust is dark brown. Let it cool before you cut it. If the bread is heavy, it needed more time; if it is
flat, it had too much.

The city library opens at nine o'clock from Monday to Friday and at eleven on Saturday. Children's books are on the
first floor, next to the stairs; newspapers, maps and music are on the second. You can borrow up to twelve books for
four weeks. Please return them on time, since other readers are waiting. The librarian's desk is near the window, and
she's always glad to help: "I'll find it for you," she says, "we've got almost everything, and what we haven't got I'd
order from another town."

In spring the river rises. Snow melts in the mountains, and the water carries branches, leaves and sometimes whole
trees down to the valley. Farmers watch it closely. They know every bend of the river and every field beside it. After
the water has gone back, the soil is dark and rich, and they begin to plant wheat, beans, onions and potatoes. By June
the whole valley is green. By September it is gold. Birds that left in autumn come home again, and the year begins
anew.

A good tool does one thing well. A hammer drives nails; a saw cuts wood; a pencil draws a line and an eraser takes it
away. People who work with their hands keep their tools clean and put them back where they belong. People who write
programs should do the same. Give every part a clear name and a clear purpose, write down what it expects and what it
promises, and test it with values that are too small, too large, empty or simply wrong. Then the next person can trust
it without reading every line.

Question: what is the distance between the Earth and the Moon? Answer: about 384,400 kilometres, or a little more than
one light second. Question: how many days are there in a leap year? Answer: 366. Question: which animals can fly?
Answer: birds, bats and most insects can fly; some fish and squirrels glide. Question: what is two plus two? Answer:
four, in any order.

The train to the north leaves at 7:45 from platform 3 and arrives at 12:10. There is a short stop at the border, where
officers look at passports and ask the usual questions. My grandmother used to travel this way with a basket of apples
on her knees. She told us stories about the war, about the winter when the lake froze and about the baker who gave
bread to everyone, even to strangers. I still hear her voice when I see the first houses of the old town.

Dear friend, thank you for your letter of 14 May. We are all well. The garden is full of roses, the dog has learned to
open the gate, and Peter has built a boat that floats (more or less). Could you send me the recipe for the soup that
you made last year? I would like to cook it on Sunday, when Anna and Tom are coming to visit. With love, your Maria.

def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)

if __name__ == "__main__":
    print(mean([1.5, 2.5, 4.0]))

int main(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) std::printf("%s\n", argv[i]);
  return 0;
}

{"name": "example", "list": [1, 2, 3], "nested": {"true": true, "null": null}}
<html><body><h1>Title</h1><p>Some text with a <a href="https://example.org/page?id=7">link</a>.</p></body></html>

Notes: the café on the corner is closed; the naïve answer was wrong; the price is 20 € — not 25 £. Temperatures fell to
−3 °C. Über, garçon, señor, Ångström, Привет, Γειά, 你好, こんにちは, 안녕. Some words that are often needed: above,
across, after, again, against, almost, along, already, although, among, answer, around, article, because, become,
before, behind, believe, below, between, beyond, black, blue, bring, brother, brought, building, business, called,
cannot, change, children, close, cold, color, common, complete, consider, country, course, create, decide, during,
early, either, enough, entire, example, explain, family, father, feel, follow, found, friend, general, government,
great, ground, group, happen, heart, history, hope, horse, house, however, human, hundred, idea, important, inside,
interest, kind, language, large, later, learn, leave, letter, level, listen, little, machine, matter, meaning, measure,
memory, minute, model, money, morning, mother, mountain, move, music, nature, never, night, nothing, notice, number,
object, often, open, other, outside, paper, pattern, people, perhaps, person, picture, place, plant, point, possible,
power, present, problem, produce, public, question, quick, ready, reason, record, remember, report, result, river,
school, science, second, section, sentence, several, should, silver, simple, single, sister, something, sound, space,
special, stand, start, state, still, stone, story, street, strong, student, study, sudden, surface, system, table,
teacher, temperature, thought, thousand, together, toward, travel, tree, true, under, understand, until, usual, value,
village, voice, water, weather, week, weight, white, whole, window, winter, without, woman, wonder, word, work, world,
write, yellow, young.
)";

const char* built_in_text() {
  return kText;
}

}  // namespace invar
