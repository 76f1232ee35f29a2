#include "model_room.h"

#include <algorithm>

#include "base/check.h"

namespace invar::server {

ModelRoom::ModelRoom(const std::vector<int64_t>& bytes, Limits limits) : limits_(limits) {
  for (const int64_t one : bytes) {
    CHECK(one <= limits.bytes, "a model fits alone");
    models_.push_back({.bytes = one});
  }
}

void ModelRoom::ask(size_t model) {
  Model& asked = models_[model];
  if (asked.waiting++ == 0) asked.asked = ++clock_;
}

void ModelRoom::leave(size_t model) {
  Model& left = models_[model];
  left.owed = std::min(left.owed, --left.waiting);
  left.given_up -= left.given_up > 0;
}

bool ModelRoom::is_open(size_t model) const {
  const Model& asked = models_[model];
  return asked.state == State::loaded && (!asked.leaves || asked.owed > 0);
}

void ModelRoom::begin(size_t model) {
  Model& begun = models_[model];
  begun.owed -= begun.owed > 0;
  leave(model);
  ++begun.answering;
  begun.used = ++clock_;
}

void ModelRoom::end(size_t model) {
  --models_[model].answering;
}

int64_t ModelRoom::bytes_taken() const {
  int64_t taken = 0;
  for (const Model& model : models_)
    if (model.state != State::unloaded) taken += model.bytes;
  return taken;
}

size_t ModelRoom::last_used() const {
  size_t last = size();
  for (size_t i = 0; i < size(); ++i)
    if (models_[i].state == State::loaded &&
        (last == size() || models_[i].used > models_[last].used))
      last = i;
  return last;
}

// Among those that wait to be loaded; size() where none does.
size_t ModelRoom::longest_waiting() const {
  size_t first = size();
  for (size_t i = 0; i < size(); ++i)
    if (models_[i].state == State::unloaded && models_[i].waiting > models_[i].given_up &&
        (first == size() || models_[i].asked < models_[first].asked))
      first = i;
  return first;
}

// The one that was asked for least recently, among those that may be put away at once, or after
// what they answer.
size_t ModelRoom::least_recent(bool idle) const {
  size_t found = size();
  for (size_t i = 0; i < size(); ++i) {
    const Model& model = models_[i];
    const bool is_one =
        model.state == State::loaded && !model.held &&
        (idle ? model.answering == 0 && model.owed == 0 && (model.leaves || model.waiting == 0)
              : !model.leaves);
    if (is_one && (found == size() || model.used < models_[found].used)) found = i;
  }
  return found;
}

bool ModelRoom::has_room(int64_t bytes, int64_t taken, size_t models) const {
  return taken + bytes <= limits_.bytes && (limits_.models == 0 || models < limits_.models);
}

// Until those that leave make the room that is wanted.
void ModelRoom::let_leave_for(size_t wanted) {
  int64_t taken = 0;
  size_t models = 0;
  for (const Model& model : models_)
    if (model.state == State::loading || (model.state == State::loaded && !model.leaves)) {
      taken += model.bytes;
      ++models;
    }
  while (!has_room(models_[wanted].bytes, taken, models)) {
    const size_t more = least_recent(false);
    if (more == size()) return;  // one that is being loaded takes it
    models_[more].leaves = true;
    taken -= models_[more].bytes;
    --models;
  }
}

ModelRoom::Step ModelRoom::next() {
  const size_t wanted = longest_waiting();
  if (wanted == size()) {  // nobody needs the room any longer
    for (Model& model : models_)
      if (model.state == State::loaded) model.leaves = false;
    return {};
  }
  int64_t taken = 0, going = 0;
  size_t models = 0, models_going = 0;
  for (const Model& model : models_) {
    if (model.state == State::unloaded) continue;
    taken += model.bytes;
    ++models;
    if (model.state != State::ending) continue;
    going += model.bytes;
    ++models_going;
  }
  const int64_t bytes = models_[wanted].bytes;
  if (has_room(bytes, taken, models)) {
    models_[wanted].state = State::loading;
    return {Step::Kind::load, wanted};
  }
  if (has_room(bytes, taken - going, models - models_going)) return {};  // it is being made
  const size_t idle = least_recent(true);
  if (idle == size()) {
    let_leave_for(wanted);
    return {};
  }
  models_[idle].state = State::ending;
  return {Step::Kind::put_away, idle};
}

void ModelRoom::loaded(size_t model) {
  Model& one = models_[model];
  one.state = State::loaded;
  one.leaves = false;
  one.owed = one.waiting;
  one.used = ++clock_;
}

void ModelRoom::unloaded(size_t model) {
  models_[model].state = State::unloaded;
  models_[model].leaves = models_[model].held = false;
  models_[model].owed = 0;
}

void ModelRoom::failed(size_t model) {
  unloaded(model);
  models_[model].given_up = models_[model].waiting;
}

}  // namespace invar::server
