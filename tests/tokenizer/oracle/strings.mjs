// Strings that tokenizers stumble over, the same in every run.

function randomFrom(seed) {
  let state = seed >>> 0;
  return (n) => {  // xorshift32
    state ^= state << 13; state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5; state >>>= 0;
    return state % n;
  };
}

export const sentences = [
  "The quick brown fox jumps over the lazy dog.", "I'll say it's what they've done; we'RE sure HE'D agree, isn'T it?",
  "Größe, Straße, naïve café — déjà vu … “quoted” ‘single’", "Быстрая коричневая лиса прыгает через ленивую собаку.",
  "Η γρήγορη αλεπού πηδάει πάνω από το σκυλί.", "השועל החום המהיר קופץ מעל הכלב העצלן", "الثعلب البني السريع يقفز فوق الكلب الكسول",
  "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है।", "দ্রুত বাদামী শিয়াল অলস কুকুরের উপর লাফ দেয়", "விரைவான பழுப்பு நரி சோம்பேறி நாயின் மீது பாய்கிறது",
  "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ", "敏捷的棕色狐狸跳过了懒狗。", "素早い茶色の狐がのろまな犬を飛び越える。カタカナ、ひらがな",
  "빠른 갈색 여우가 게으른 개를 뛰어넘는다.", "Con cáo nâu nhanh nhẹn nhảy qua con chó lười biếng", "Արագ շագանակագույն աղվեսը", "სწრაფი ყავისფერი მელა",
  "ፈጣኑ ቡናማ ቀበሮ", "ကြက်သွန်ဖြူ", "ក្រហម ខ្មែរ", "ᚠᛇᚻ ᛒᛦᚦ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒻𝑜𝓃𝓉 ①②③ Ⅷ ½ ²³ ٣٤٥ ४५६ 一二三", "ǅ ǲ ﬁﬂﬆ ß ẞ İ ı ſ K Å Ω",
  "e\u0301 a\u0308\u0323 n\u0303 \u1112\u1161\u11ab ｶﾞ ﷺ", "👩‍👩‍👧‍👦 👍🏽 🇩🇪🇯🇵 🏴󠁧󠁢󠁳󠁣󠁴󠁿 ❤️ ☃ 🫠 1️⃣", "x\u200by\u200dz\u2060\u00ad\u180e\u3000\u2028\u2029\u202f",
  "def f(x):\n\treturn x**2  # square\n\n\nfor i in range(10):\n    print(f'{i:>5}')\n", "if (a[i] != b->c && !(d & 0xFF)) { return \"x\\n\"; } // done",
  "<html lang=\"en\"><!-- c --><b>x</b>&nbsp;</html>", "{\"a\":[1,2.5e-3,null],\"b\":\"\\u00e9\"}", "https://example.org/a/b?c=d&e=%20#f user@example.com",
  "1234567890 3.14159 1,000,000 2024-05-17 +49-30-1234 0x1F 1e-9 ½kg 100%", "SELECT * FROM t WHERE a='it''s' -- x", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
  "================----------~~~~~~~~########", "MiXeD cAsE WORDS camelCaseWords snake_case_words", "don't can't won't I'm you're he'll they'd 'tis 'twas O'Neill's",
];
const spaces = [' ', '  ', '   ', '        ', '\n', '\n\n', '\r\n', '\t', '\t\t', ' \n', '\n ', ' \n\n  ', '\u00a0', '\u3000', '\u2003', '\u000b', '\u000c', ''];
const specials = ['<|endoftext|>', '<|begin_of_text|>', '<|eot_id|>', '<|start_header_id|>', '<|reserved_special_token_2|>', '<s>', '</s>', '<unk>',
  '<|fim_prefix|>', '<0x0A>', '<0x41>', '<left>', '<right>', '<both>', 'zword', 'zfine', 'zﬁne', '<|end', '|>', '<', '▁', '▁▁', '<|endoftext|><left>'];
// Scripts whose letters, digits and marks have long been assigned.
const ranges = [[0x20, 0x7e], [0xa0, 0x17f], [0x370, 0x377], [0x400, 0x4ff], [0x5d0, 0x5ea], [0x620, 0x65f], [0x905, 0x939], [0xe01, 0xe3a], [0x10d0, 0x10f0],
  [0x1100, 0x1159], [0x1e00, 0x1eff], [0x2010, 0x2027], [0x20a0, 0x20b5], [0x2100, 0x214f], [0x2190, 0x21ff], [0x2500, 0x257f], [0x3041, 0x3096], [0x30a1, 0x30fa],
  [0x4e00, 0x9fa5], [0xac00, 0xd7a3], [0xff01, 0xff5e], [0x1d400, 0x1d454], [0x1f300, 0x1f5ff], [0x1f600, 0x1f64f], [0x20000, 0x2a6d6], [0x300, 0x33f], [0, 0x1f]];

export function strings(count, seed = 1) {
  const random = randomFrom(seed);
  const pick = (list) => list[random(list.length)];
  const characters = (n) => Array.from({ length: n }, () => {
    const [low, high] = pick(ranges);
    return String.fromCodePoint(low + random(high - low + 1));
  }).join('');
  const out = ['', ...sentences, ...spaces, ...specials, sentences.join('\n')];
  for (const s of spaces) out.push(s + 'a', 'a' + s, `a${s}b`, s + s + 'a', `1${s}!`);
  while (out.length < count) {
    let text = '';
    for (let parts = 1 + random(6); parts > 0; --parts) {
      switch (random(6)) {
        case 0: text += pick(sentences); break;
        case 1: { const s = [...pick(sentences)]; const at = random(s.length); text += s.slice(at, at + 1 + random(12)).join(''); break; }
        case 2: text += characters(1 + random(12)); break;
        case 3: text += pick(specials); break;
        case 4: text += String(random(1 << 30)); break;
        case 5: text += pick(sentences).split(' ')[0]; break;
      }
      text += pick(spaces);
    }
    out.push(text.toWellFormed ? text.toWellFormed() : text);
  }
  return out.slice(0, count);
}
