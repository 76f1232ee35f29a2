#include "engine/agreement.h"

#include <xxhash.h>

#include <cstring>

#include "base/error.h"
#include "engine/wires.h"

namespace invar {

namespace {

struct Heard {
  uint64_t hash = 0;
  char host[56] = "";
};

void expect_same(const Heard& mine, const Heard& other, int rank, int stage) {
  if (other.hash == mine.hash) return;
  fail("rank {} of stage {} on {} was told another batch than the one that found it, on {}", rank,
       stage, std::string_view(other.host), std::string_view(mine.host));
}

}  // namespace

void expect_agreement(const WorkerPlace& place, const WorkerLinks& links,
                      std::string_view message) {
  Heard mine{.hash = XXH3_64bits(message.data(), message.size())};
  std::strncpy(mine.host, host_name().c_str(), sizeof mine.host - 1);
  if (links.after) links.after->send(&mine, sizeof mine);
  std::vector<Heard> all(static_cast<size_t>(place.ranks));
  links.group->all_gather(&mine, sizeof mine, all.data(), {});
  for (int rank = 0; rank < place.ranks; ++rank) expect_same(mine, all[rank], rank, place.stage);
  if (!links.before) return;
  Heard before;
  links.before->receive(&before, sizeof before);
  expect_same(mine, before, place.rank, place.stage - 1);
}

}  // namespace invar
