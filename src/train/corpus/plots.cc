#include "train/corpus/plots.h"

#include <iterator>

namespace invar::corpus {

const Plot kPlots[] = {
    {"a lost {toy}",
     "{hero} had {a color} {toy} and [took it everywhere|loved it very much|played with it every "
     "day]. But [that morning|after breakfast|when {he} came home] the {toy} was gone. "
     "[{hero} felt sad|{hero} began to cry|{He} looked around and did not know what to do]. \"I "
     "can not find my {toy},\" {he} [said|told {friend}|whispered]. \"[Do not worry|Do not "
     "cry|Cheer up],\" said {friend}. \"[We will look together|I will help you|Two can look better "
     "than one].\" [They looked {in_place}, but it was not there. |First they searched {in_place}. "
     "There was nothing. |]Then {friend} looked {hiding}. \"[Here it is|I see it|Come quickly]!\" "
     "{fhe} [called|cried|shouted]. [There was the {color} {toy}|The {toy} was a little dusty, but "
     "it was not broken|It had been there all the time]. {hero} was so [happy|glad] that {he} "
     "[hugged {friend}|danced around|laughed out loud]. \"Thank you,\" {he} said. \"[You are a "
     "good "
     "friend|I could not have found it alone].\" [From then on {hero} always put the {toy} back in "
     "its place.|After that they played with the {toy} until dark.|That night the {toy} lay safely "
     "beside {hero}'s bed.]",
     {{"What did {hero} lose?", "{hero} lost {his} {color} {toy}."},
      {"Where was the {toy}?", "The {toy} was {hiding}."},
      {"Who found the {toy}?", "{friend} found the {toy}."},
      {"What color was the {toy}?", "The {toy} was {color}."}}},

    {"a {pet} that ran away",
     "{hero} had a little {pet} called {pet_name}. [One evening|While {hero} was eating|When the "
     "wind blew hard], someone left the gate open, and {pet_name} ran away. \"{pet_name}! "
     "{pet_name}!\" called {hero}, but [nothing moved|no one came|there was only the wind]. "
     "{friend} [heard the calling and came running|saw {him} and asked what was wrong]. \"My {pet} "
     "is gone,\" said {hero}. \"[Let us follow the tracks|Let us ask everyone we meet|Let us be "
     "very quiet and listen],\" said {friend}. So they [walked and walked|went from house to "
     "house|listened carefully]. {in_place} they met {neighbor}. \"[I saw a small {pet}|A {pet} "
     "ran past me],\" said {neighbor}. \"Look {hiding}.\" And [indeed|really], {pet_name} sat "
     "{hiding}, [wet and cold|shaking a little|fast asleep]. {hero} [picked {pet_name} up|took the "
     "{pet} in {his} arms] and [carried it home|held it close]. [Because the gate had been open, "
     "{hero} closed it twice that night.|\"We will always close the gate now,\" said "
     "{hero}.|{hero} "
     "gave the {pet} some warm milk.]",
     {{"What was the {pet}'s name?", "The {pet}'s name was {pet_name}."},
      {"Where did they find {pet_name}?", "They found {pet_name} {hiding}."},
      {"Why could {pet_name} run away?", "{pet_name} could run away because the gate was open."},
      {"Who told them where to look?", "{neighbor} told them where to look."}}},

    {"baking {a cake}",
     "[It was {day}|It was {elder_name}'s birthday], and {hero} wanted to bake {a cake}. {friend} "
     "came to help. They [washed their hands|put on two big aprons] and [took out a bowl|found the "
     "big bowl]. But when {hero} opened the cupboard, there was no {ingredient}. \"[Oh no|Oh "
     "dear]!\" said {hero}. \"Without {ingredient} we can not bake.\" {friend} [thought for a "
     "moment|smiled]. \"We can ask {neighbor},\" {fhe} said. So they ran to {neighbor}'s "
     "house and knocked. \"[Of course|Certainly|Yes, my dears],\" said {neighbor}, and gave them "
     "{ingredient}. [Soon|Before long|An hour later] the whole house smelled [sweet|wonderful|of "
     "{cake}]. [When the {cake} was done|When it had cooled], {hero} cut {number} pieces. [The "
     "biggest piece was for {neighbor}.|\"The first piece is for {neighbor},\" said {hero}.|They "
     "carried one piece to {neighbor}.] [Everyone said it was the best {cake} in {town}.|It tasted "
     "better because they had made it together.|Nothing was left but crumbs.]",
     {{"What did {hero} want to bake?", "{hero} wanted to bake {a cake}."},
      {"What was missing?", "There was no {ingredient}."},
      {"Who gave them {ingredient}?", "{neighbor} gave them {ingredient}."},
      {"How many pieces did {hero} cut?", "{hero} cut {number} pieces."}}},

    {"learning to {skill}",
     "{hero} wanted to learn to {skill}. {elder_name} [could do it well|had done it for many "
     "years], and {hero} [watched|asked for help]. \"[It takes time|Nobody learns it in a day],\" "
     "said {elder_name}. On the first day {hero} tried {number} times, and every time it went "
     "wrong. [{He} was angry and wanted to give up.|\"I will never learn it,\" {he} said.|{He} sat "
     "down and sighed.] Then {friend} came by. \"[I could not do it at first either|Every try "
     "makes "
     "you better|Try it slowly],\" said {friend}. \"[Try once more|Do not stop now].\" So {hero} "
     "[practiced every day|tried again and again|got up and tried again]. [On {day}|After two "
     "weeks|One {weather} {daypart}] it [happened|worked at last]: {hero} could {skill}! "
     "{elder_name} "
     "[clapped|was proud|laughed with joy]. \"You see,\" {ehe} said, \"[you did not give "
     "up|practice "
     "helps].\" [Now {hero} teaches {friend} something new each week.|{hero} could not stop "
     "smiling.|And {hero} showed everyone {in_place}.]",
     {{"What did {hero} want to learn?", "{hero} wanted to learn to {skill}."},
      {"Who could do it well?", "{elder_name} could do it well."},
      {"How many times did {hero} try on the first day?",
       "{hero} tried {number} times on the first day."},
      {"Who told {hero} not to give up?", "{friend} told {hero} not to give up."}}},

    {"a storm",
     "{hero} and {friend} were playing {in_place} when [dark clouds came|the sky turned gray|the "
     "wind began to howl]. [A drop fell on {hero}'s nose.|\"I felt a drop,\" said {hero}.] Then "
     "[it began to pour|the rain came down in buckets|thunder rolled over the hills]. \"We must "
     "[run|find a dry place]!\" cried {friend}. They ran to {shelter} and [crept "
     "inside|squeezed in]. Because {friend} was afraid of the thunder, {hero} [told {fhim} a funny "
     "story|sang a song|held {fhis} hand]. {He} also had {a food} in {his} pocket, and they shared "
     "it. [After a while|Little by little|At last] the rain stopped. [A rainbow stood over the "
     "{field_word}.|The sun came out, and everything shone.] \"[I am not afraid anymore|Storms are "
     "not so bad when you are with a friend],\" said {friend}. [They jumped in every puddle on the "
     "way home.|They walked home hand in hand.|They waved to {neighbor} as they went home.]",
     {{"Where were {hero} and {friend} playing?", "They were playing {in_place}."},
      {"Where did they hide from the rain?", "They hid in {shelter}."},
      {"Why was {friend} afraid?", "{friend} was afraid of the thunder."},
      {"What did they share?", "They shared {a food}."}}},

    {"sharing a {toy}",
     "{in_place} there was only one {color} {toy}, and both {hero} and {friend} wanted it. \"[I "
     "saw "
     "it first|It is mine],\" said {hero}. \"No, [I did|it is mine],\" said {friend}. They [pulled "
     "and pulled|both held on tight], and [soon|then] the {toy} fell into the mud. [Both of them "
     "were quiet.|Now nobody could play.|{hero} looked at {friend}, and {friend} looked at "
     "{hero}.] "
     "{elder_name} [had seen it all|came by]. \"[What if you take turns|You could take turns],\" "
     "{ehe} said. {hero} thought about it. \"[You can have it first|You go first],\" {he} said to "
     "{friend}. So they washed the {toy}, and {friend} played until {neighbor}'s clock struck "
     "{number}, and then it was {hero}'s turn. [It was more fun than before.|They laughed more "
     "than "
     "ever.|In the end they found a game for two.] [That is how they learned to share.|\"Sharing "
     "is "
     "better than pulling,\" said {friend}.|After that, they never fought over a {toy} again.]",
     {{"What did both of them want?", "They both wanted the {color} {toy}."},
      {"Where did the {toy} fall?", "The {toy} fell into the mud."},
      {"Who said that they could take turns?", "{elder_name} said that they could take turns."},
      {"Who played first?", "{friend} played first."}}},

    {"a broken {thing}",
     "{hero} was [running|jumping|playing ball] in the {room}, although {elder_name} had said not "
     "to. Crash! {elder_name}'s {color} {thing} fell down and broke. {hero}'s heart beat fast. "
     "{He} "
     "hid the pieces {hiding} and [said nothing|hoped that nobody would see]. But [{he} could not "
     "eat|{he} could not sleep|{he} did not feel well]. \"[What is wrong|Why are you so "
     "quiet]?\" asked {friend}. {hero} told {fhim} everything. \"[You should tell the truth|Tell "
     "{elder_name}|It will feel better when you say it],\" said {friend}. So {hero} [took a deep "
     "breath|went to {elder_name}]. \"I broke your {thing},\" {he} said. \"I am sorry.\" "
     "{elder_name} [was silent for a moment|looked at {him} kindly]. \"[Thank you for telling "
     "me|I am glad that you told me the truth],\" {ehe} said. \"[A {thing} can be mended|We can "
     "glue "
     "it together].\" [They mended it together that evening.|They glued it, and one could hardly "
     "see "
     "it.] [And {hero} felt light again.|That night {hero} slept very well.|After that, {hero} "
     "played outside.]",
     {{"What did {hero} break?", "{hero} broke {elder_name}'s {thing}."},
      {"Where did {hero} hide the pieces?", "{hero} hid the pieces {hiding}."},
      {"In which room was {hero}?", "{hero} was in the {room}."},
      {"What did {friend} say?", "{friend} said that {hero} should tell the truth."}}},

    {"growing {a flower}",
     "In {season}, {neighbor} gave {hero} a tiny seed. \"[Put it into the ground and wait|Plant it "
     "and be patient],\" said {neighbor}. {hero} planted it {in_place} and gave it water every "
     "day. But [after a week|many days later] there was [nothing to see|only brown earth]. \"It "
     "does not work,\" {hero} said [sadly|to {friend}]. \"[Seeds are slow|Good things take "
     "time],\" "
     "said {friend}. \"[Wait a little longer|It is growing where you can not see it].\" So {hero} "
     "waited {number} more days. [And then|One {weather} {daypart}], there was a small green leaf! "
     "It grew [and grew|taller and taller], and in the end it was {a color} {flower}. [Bees came "
     "to "
     "visit it.|Everyone stopped to look at it.|{friend} sat down beside it and smiled.] {hero} "
     "gave {neighbor} [one of the new seeds|a big hug]. \"[Because you waited, it could "
     "grow|You were patient],\" said {neighbor}.",
     {{"What did {neighbor} give to {hero}?", "{neighbor} gave {hero} a tiny seed."},
      {"Where did {hero} plant it?", "{hero} planted it {in_place}."},
      {"How many more days did {hero} wait?", "{hero} waited {number} more days."},
      {"What grew from the seed?", "{a color} {flower} grew from the seed."}}},

    {"a race",
     "{hero} was very fast and [told everyone so|liked to say it]. \"[Nobody can beat me|I am the "
     "fastest in {town}],\" {he} said. \"Let us have a race, then,\" said {friend}. \"From here to "
     "{the_goal}.\" [Many came to watch.|{neighbor} counted to three.|\"Ready, steady, go!\" "
     "called "
     "{neighbor}.] {hero} ran [like the wind|far ahead] and {friend} was soon behind. [Since {he} "
     "was so far ahead|Because {he} felt so sure], {hero} stopped to eat {a food}. [It was warm, "
     "and "
     "{his} eyes closed.|{He} sat down in the shade and fell asleep.] {friend} did not stop. "
     "[Step by step|Slowly and steadily] {fhe} went on. When {hero} [woke up|opened {his} eyes], "
     "{friend} was already at {the_goal}. \"You won,\" said {hero}, \"[because you did not "
     "stop|and I was foolish].\" {friend} [laughed|smiled] and gave {him} {fhis} hand. \"[Next "
     "time "
     "we run together|It was a good race],\" {fhe} said. [{hero} never boasted again.|After that "
     "{hero} boasted a little less.]",
     {{"Who won the race?", "{friend} won the race."},
      {"Why did {hero} lose?", "{hero} lost because {he} stopped and fell asleep."},
      {"What did {hero} eat?", "{hero} ate {a food}."},
      {"Where did the race end?", "The race ended at {the_goal}."}}},

    {"a new neighbor",
     "A new {stranger_kind} came to {town}. {sHis} name was {stranger}, and {she} [sat alone "
     "{in_place}|did not speak to anyone]. \"[Why does {she} not play with us|{stranger} never "
     "plays with us],\" said {friend}. \"[Perhaps {she} is shy|Maybe {she} is afraid],\" said "
     "{hero}. So {hero} took {his} {color} {toy} and went to {stranger}. \"Hello,\" {he} said. "
     "\"[Would you like to play|Do you want to play with us]?\" {stranger} looked [down|at the "
     "{toy}]. \"[I do not know the game|Nobody has asked me before],\" {she} said "
     "[softly|quietly]. "
     "\"[We will show you|It is easy],\" said {hero}. [At first {stranger} was slow|In the "
     "beginning "
     "{stranger} said little], but [soon|before long] {she} laughed as loud as {friend}. \"I can "
     "{skill},\" {she} said. \"[Shall I teach you|I can show you]?\" [They all wanted to learn "
     "it.|So each of them learned something that day.] [From that day on they were three "
     "friends.|And so {stranger} was not alone anymore.]",
     {{"Who was new in {town}?", "{stranger} was new in {town}."},
      {"What did {hero} take to {stranger}?", "{hero} took {his} {color} {toy}."},
      {"What could {stranger} do?", "{stranger} could {skill}."},
      {"Where did the new {stranger_kind} come to live?", "{stranger} came to live in {town}."}}},

    {"a birthday surprise",
     "It was {day}, and it was {hero}'s birthday. But [nobody said a word|no one seemed to "
     "remember]. {elder_name} [only read the paper|was busy in the {room}]. {friend} walked by and "
     "[just waved|said only good morning]. \"[They have all forgotten|Nobody remembers],\" thought "
     "{hero}, and {he} went for a walk {in_place}. {He} felt [lonely|very small]. When it grew "
     "dark, "
     "{he} came home. The house was black and quiet. {hero} opened the door. \"Surprise!\" There "
     "stood {friend} and {elder_name} and {neighbor}, and on the table was {a cake} with {number} "
     "candles. \"[We had to keep it a secret|That is why we were so quiet],\" said {friend}. "
     "{neighbor} gave {hero} {a color} {toy}. [{hero} was so happy that {he} could not "
     "speak.|\"This "
     "is the best day of the year,\" said {hero}.] [They sang and danced until late.|They ate the "
     "{cake} to the last crumb.]",
     {{"Why was {hero} sad?",
       "{hero} was sad because {he} thought everyone had forgotten {his} birthday."},
      {"How many candles were there?", "There were {number} candles."},
      {"What did {neighbor} give to {hero}?", "{neighbor} gave {hero} {a color} {toy}."},
      {"What was on the table?", "On the table was {a cake} with {number} candles."}}},

    {"being brave in the dark",
     "{hero} was afraid of the dark. [Every night {he} saw shapes on the wall.|When the lamp went "
     "out, {he} hid under the blanket.] One night {he} heard a noise from the {room}. Tap, tap, "
     "tap. "
     "\"[Is it a monster|What is that]?\" {he} whispered. {friend}, who was staying for the night, "
     "sat up. \"[Let us look|We will go together],\" said {friend}. {hero}'s knees were shaking, "
     "but "
     "{he} took {his} {color} lantern. [Slowly|Quietly] they opened the door of the {room}. Tap, "
     "tap, "
     "tap! {hero} held up the lantern. It was only {a pet} [at the window|with a nut|playing with "
     "{a thing}]! [Both of them began to laugh.|\"You are no monster,\" said {hero}.] They gave it "
     "{a food}, and it [ran off happily|fell asleep in a corner]. \"[The dark is just the day with "
     "the light off|Things look smaller when you look at them],\" said {friend}. [After that, "
     "{hero} "
     "was not afraid.|That night {hero} slept without a lamp.]",
     {{"What was {hero} afraid of?", "{hero} was afraid of the dark."},
      {"Where did the noise come from?", "The noise came from the {room}."},
      {"What made the noise?", "{a pet} made the noise."},
      {"What did {hero} carry?", "{hero} carried {his} {color} lantern."}}},

    {"helping a small animal",
     "{hero} and {friend} were walking {in_place} when they heard a [small|thin] voice. \"Help! "
     "Help!\" It was a little {animal}. Its foot was stuck {stuck}. \"[Poor thing|Do not be "
     "afraid],\" said {hero}. \"We will help you.\" {hero} pulled, but {he} was not strong enough. "
     "{friend} pulled too, and still it did not move. Then {hero} had an idea. {He} [ran "
     "home|hurried off] and came back with a rope. They tied the rope, and together they pulled. "
     "One, two, three! The {animal} was free. \"[Thank you|You are very kind],\" it said. \"[One "
     "day "
     "I will help you too|I will not forget it].\" {number_cap} days later {hero} lost {his} way "
     "{in_place2}. "
     "[It was getting dark.|No path was to be seen.] Suddenly the {animal} came out of the bushes. "
     "\"[Follow me|I know the way],\" it said, and it led {him} home. [So one kind act came back "
     "as "
     "another.|\"Now we have both been helped,\" said the {animal}.|Since then the three have been "
     "friends.]",
     {{"Which animal needed help?", "A little {animal} needed help."},
      {"Where was its foot stuck?", "Its foot was stuck {stuck}."},
      {"What did {hero} fetch?", "{hero} fetched a rope."},
      {"How did the {animal} help {hero} later?", "The {animal} led {hero} home."}}},

    {"a stall at the market",
     "{hero} and {friend} had too many {foods}. \"[Let us sell them|We can sell some at the "
     "market],\" said {friend}. On {day} they put {count} {foods} into {a color} basket and set up "
     "a "
     "small table. [At first nobody came.|For a long time they just waited.] Then {hero} [began to "
     "sing|painted a big sign|called out loudly], and people turned around. {neighbor} bought "
     "{sold} "
     "{foods}. [\"They are very good,\" said {neighbor}.|{neighbor} took a bite and smiled.] Now "
     "there were {left} {foods} in the basket. A little {pet} looked at them with hungry eyes, so "
     "{friend} gave it one. With the coins they bought {a toy} for both. \"[It was hard work|We "
     "did "
     "well],\" said {hero}. \"[But it was fun|And we made a friend].\" [They went home with an "
     "empty "
     "basket.|Next {day} they will go again.]",
     {{"What did they sell?", "They sold {foods}."},
      {"How many {foods} did {neighbor} buy?", "{neighbor} bought {sold} {foods}."},
      {"How many {foods} were left then?", "There were {left} {foods} left."},
      {"What did they buy with the coins?", "They bought {a toy}."}}},

    {"a kite in a tree",
     "It was a windy {daypart}, and {hero} was flying {his} {color} kite {in_place}. [Up, up it "
     "went.|The kite danced in the sky.] Suddenly the string broke, and the kite was caught in a "
     "tall tree. {hero} jumped, but {he} was too small. {He} threw {a thing}, but it [missed|fell "
     "down again]. \"[Now it is gone|I will never get it back],\" {he} said. {friend} looked up. "
     "\"If "
     "you climb on my back, you can reach the branch,\" said {friend}. {hero} climbed up. {He} "
     "stretched and stretched, but {number} fingers were missing. Just then {neighbor} came along "
     "with a ladder. [\"May we use your ladder?\" asked {friend}.|\"Please help us,\" said "
     "{hero}.] "
     "\"[With pleasure|Of course],\" said {neighbor} and put the ladder against the tree. [Soon "
     "{hero} "
     "had the kite in {his} hands.|A moment later the kite was free.] [They tied a new string, and "
     "this time it was a strong one.|Then all three flew the kite until the sun went down.]",
     {{"What was caught in the tree?", "{hero}'s {color} kite was caught in the tree."},
      {"Why was the kite caught in the tree?", "The kite was caught because the string broke."},
      {"Who had a ladder?", "{neighbor} had a ladder."},
      {"Where was {hero} flying the kite?", "{hero} was flying the kite {in_place}."}}},

    {"building {a shelter2}",
     "{hero} and {friend} wanted to build {a shelter2} {in_place}. {hero} [brought|found] wood and "
     "{friend} brought {a color} cloth. [They worked all {daypart}.|They worked until they were "
     "tired.] But in the night a strong wind came and blew everything down. [In the morning {hero} "
     "saw it and was sad.|\"All our work is gone,\" said {friend} the next morning.] {elder_name} "
     "came to look. \"[It fell because it had no strong posts|It needs strong posts],\" {ehe} "
     "said. "
     "So they dug {number} holes and put a strong post into each. [It took much longer this "
     "time.|Now they worked more slowly and more carefully.] [When the wind came again|That night "
     "it "
     "was stormy], the {shelter2} did not move. Inside, {hero} and {friend} ate {a food} and [told "
     "each other stories|listened to the wind]. \"[What is built well stands well|It was worth "
     "it],\" said {hero}.",
     {{"What did they want to build?", "They wanted to build {a shelter2}."},
      {"Why did it fall down?", "It fell down because it had no strong posts."},
      {"How many holes did they dig?", "They dug {number} holes."},
      {"What did {friend} bring?", "{friend} brought {a color} cloth."}}},

    {"a letter",
     "One {daypart} a letter lay [in front of the door|under the door]. It was for {elder_name}, "
     "and "
     "it came from {town}. But {elder_name} was not there. {ehe} was {in_place}. \"[We must take "
     "it "
     "to {ehim}|Perhaps it is important],\" said {hero}. {friend} came along. On the way the wind "
     "took the letter out of {hero}'s hand, and it flew [away|over a fence] and landed {hiding}. "
     "[They ran after it.|\"Catch it!\" cried {friend}.] {friend} was quick and got it back, [only "
     "a "
     "little wet|without a scratch]. At last they found {elder_name}. {eHe} opened the letter and "
     "[read it twice|began to smile]. \"It is from my old friend {neighbor},\" {ehe} said. "
     "\"{neighbor} "
     "will visit us on {day} and bring {a cake}.\" \"[Then it was important|Hurray],\" said "
     "{hero}. "
     "[And on {day} they all sat around the table.|For {number} days {hero} could hardly wait.]",
     {{"Who was the letter for?", "The letter was for {elder_name}."},
      {"Where did the letter land?", "The letter landed {hiding}."},
      {"Who wrote the letter?", "{neighbor} wrote the letter."},
      {"What will {neighbor} bring?", "{neighbor} will bring {a cake}."}}},

    {"a hidden treasure",
     "In the {room}, {hero} found an old map. {a color} cross was drawn on it. \"[That must be a "
     "treasure|Look at this],\" {he} said to {friend}. The map said: walk {number} steps from the "
     "old "
     "well, then look {hiding}. [They took a shovel and set off.|They could not wait and ran "
     "outside.] They counted their steps, but [{hero}'s steps were long and {friend}'s were "
     "short|they came to the wrong place]. \"[Let us count again|We must go slowly],\" said "
     "{friend}. This time they [walked together|counted aloud], and {hiding} there was a small "
     "box. "
     "Inside lay {a toy} and a note. \"I hid this when I was as old as you,\" it said. \"Have fun "
     "with it. {elder_name}.\" [{hero} laughed|{hero} ran to {elder_name} with shining eyes]. "
     "\"[You found it|I had almost forgotten it],\" said {elder_name}. [Then they hid a treasure "
     "of "
     "their own.|The three of them played with it that same {daypart}.]",
     {{"What did {hero} find in the {room}?", "{hero} found an old map in the {room}."},
      {"How many steps did they walk?", "They walked {number} steps."},
      {"What was in the box?", "In the box were {a toy} and a note."},
      {"Who had hidden the treasure?", "{elder_name} had hidden the treasure."}}},
};

const size_t kPlotCount = std::size(kPlots);

}  // namespace invar::corpus
