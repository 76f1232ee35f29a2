#include "kv/prefix_cache.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/error.h"

namespace invar {

namespace {

// One step of a 64-bit hash (the finalizer of splitmix64).
uint64_t mix(uint64_t hash, uint64_t value) {
  uint64_t z = (hash ^ value) + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace

PrefixCache::PrefixCache(PagePool& pool, uint64_t hash_mask) : pool_(pool), hash_mask_(hash_mask) {
  entries_.resize(pool.num_pages());
  tokens_.resize(int64_t{pool.num_pages()} * pool.page_places());
  buckets_.resize(std::bit_ceil(static_cast<uint32_t>(pool.num_pages())), -1);
  pool.set_keeper(this);
}

PrefixCache::~PrefixCache() {
  clear();
  pool_.set_keeper(nullptr);
}

void PrefixCache::match(std::span<const int32_t> tokens, std::string_view salt,
                        std::vector<int32_t>& pages) {
  pages.clear();
  const int32_t places = pool_.page_places();
  int32_t parent = -1;
  // One token stays out: its logits are wanted.
  for (size_t begin = 0; begin + places < tokens.size(); begin += places) {
    const uint64_t hash = hash_of(parent, salt, &tokens[begin]);
    const int32_t page = find(hash, parent, salt, &tokens[begin]);
    if (page < 0) break;
    pages.push_back(page);
    parent = page;
  }
  touch_chain(parent);
}

void PrefixCache::insert(std::span<const int32_t> tokens, std::string_view salt,
                         BlockTable& table) {
  const int32_t places = pool_.page_places();
  const int32_t full = static_cast<int32_t>(tokens.size()) / places;
  CHECK(full <= table.num_pages(), "tokens without pages");
  int32_t parent = -1;
  for (int32_t i = 0; i < full; ++i) {
    const int32_t* content = &tokens[i * places];
    const uint64_t hash = hash_of(parent, salt, content);
    int32_t page = find(hash, parent, salt, content);
    if (page < 0) {
      page = table.pages()[i];
      add(page, hash, parent, salt, content);
    } else if (page != table.pages()[i]) {
      table.replace(i, page);
    }
    parent = page;
  }
  touch_chain(parent);
}

void PrefixCache::clear() {
  // Ends of chains first.
  while (size_ > 0)
    for (int32_t page = oldest_; page >= 0;) {
      const int32_t newer = entries_[page].newer;
      if (entries_[page].children == 0) remove(page);
      page = newer;
    }
}

void PrefixCache::give_up_page() {
  // Pages in use, and those whose children are not gone yet, count as used now. A page in use has
  // every page before it in use, so an idle end of a chain exists wherever an idle page does.
  for (;;) {
    const int32_t page = oldest_;
    CHECK(page >= 0, "no page to give up");
    if (pool_.is_idle_kept(page) && entries_[page].children == 0) return remove(page);
    unlink(page);
    link_newest(page);
  }
}

uint64_t PrefixCache::hash_of(int32_t parent, std::string_view salt, const int32_t* tokens) const {
  uint64_t hash = 0;
  if (parent >= 0)
    hash = entries_[parent].hash;
  else
    for (const char c : salt) hash = mix(hash, static_cast<unsigned char>(c));
  for (int32_t i = 0; i < pool_.page_places(); ++i)
    hash = mix(hash, static_cast<uint32_t>(tokens[i]));
  return hash & hash_mask_;
}

int32_t PrefixCache::find(uint64_t hash, int32_t parent, std::string_view salt,
                          const int32_t* tokens) const {
  const int32_t places = pool_.page_places();
  int32_t page = buckets_[hash & (buckets_.size() - 1)];
  for (; page >= 0; page = entries_[page].next_in_bucket) {
    const Entry& e = entries_[page];
    if (e.hash == hash && e.parent == parent && (parent >= 0 || e.salt == salt) &&
        std::equal(tokens, tokens + places, &tokens_[int64_t{page} * places]))
      break;
  }
  return page;
}

void PrefixCache::add(int32_t page, uint64_t hash, int32_t parent, std::string_view salt,
                      const int32_t* tokens) {
  Entry& e = entries_[page];
  CHECK(!e.is_used, "a page with two entries");
  pool_.keep(page);
  e.is_used = true;
  e.hash = hash;
  e.parent = parent;
  e.children = 0;
  if (parent >= 0)
    ++entries_[parent].children;
  else
    e.salt = salt;
  std::copy(tokens, tokens + pool_.page_places(), &tokens_[int64_t{page} * pool_.page_places()]);
  e.next_in_bucket = bucket(hash);
  bucket(hash) = page;
  link_newest(page);
  ++size_;
}

void PrefixCache::remove(int32_t page) {
  Entry& e = entries_[page];
  int32_t* link = &bucket(e.hash);
  while (*link != page) link = &entries_[*link].next_in_bucket;
  *link = e.next_in_bucket;
  if (e.parent >= 0) --entries_[e.parent].children;
  e.salt.clear();
  e.is_used = false;
  unlink(page);
  --size_;
  pool_.drop_kept(page);
}

void PrefixCache::touch_chain(int32_t last) {
  for (int32_t page = last; page >= 0; page = entries_[page].parent) {
    unlink(page);
    link_newest(page);
  }
}

void PrefixCache::link_newest(int32_t page) {
  entries_[page].older = newest_;
  entries_[page].newer = -1;
  (newest_ >= 0 ? entries_[newest_].newer : oldest_) = page;
  newest_ = page;
}

void PrefixCache::unlink(int32_t page) {
  const Entry& e = entries_[page];
  (e.older >= 0 ? entries_[e.older].newer : oldest_) = e.newer;
  (e.newer >= 0 ? entries_[e.newer].older : newest_) = e.older;
}

std::string PrefixCache::check_integrity() const {
  int32_t used = 0, listed = 0;
  std::vector<int32_t> children(entries_.size(), 0);
  for (int32_t page = 0; page < std::ssize(entries_); ++page) {
    const Entry& e = entries_[page];
    if (!e.is_used) continue;
    ++used;
    if (e.parent < 0) continue;
    if (!entries_[e.parent].is_used) return fmt::format("page {} lost its parent", page);
    if (pool_.is_idle_kept(e.parent) && !pool_.is_idle_kept(page))
      return fmt::format("page {} is in use but the page before it is not", page);
    ++children[e.parent];
  }
  for (int32_t page = oldest_; page >= 0; page = entries_[page].newer) ++listed;
  if (used != size_ || listed != size_)
    return fmt::format("{} entries are counted, {} exist, {} are listed", size_, used, listed);
  for (int32_t page = 0; page < std::ssize(entries_); ++page)
    if (entries_[page].is_used && entries_[page].children != children[page])
      return fmt::format("page {} counts {} children and has {}", page, entries_[page].children,
                         children[page]);
  return {};
}

}  // namespace invar
