// Which of several models are loaded: those asked for, within a budget of memory. Pure logic; who
// starts and ends what computes them is elsewhere (models_front.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace invar::server {

class ModelRoom {
 public:
  struct Limits {
    int64_t bytes = 0;  // of memory for all that are loaded together
    size_t models = 0;  // that are loaded at the same time; 0: as many as fit
  };
  enum class State { unloaded, loading, loaded, ending };

  // Models that take so many bytes each once they are loaded, none of them more than there are.
  ModelRoom(const std::vector<int64_t>& bytes, Limits limits);

  // A request for a model waits: `begin` or `leave` ends that.
  void ask(size_t model);
  void leave(size_t model);
  // Whether what waits for it may begin. A model that others wait for takes no new requests: it
  // goes as soon as those that it answers have ended.
  bool is_open(size_t model) const;
  // A request that waited is answered from now on, until `end`.
  void begin(size_t model);
  void end(size_t model);
  // The model computes for nobody who waits here: until `release` it is not put away, and goes on
  // taking requests.
  void hold(size_t model) { models_[model].held = true; }
  void release(size_t model) { models_[model].held = false; }

  // The step that comes next; the model's state says that it is being done. The longest wait
  // comes first, and nobody overtakes it. Room is made by the model that was asked for least
  // recently among those that answer nothing.
  struct Step {
    enum class Kind { none, load, put_away } kind = Kind::none;
    size_t model = 0;
  };
  Step next();
  // These say what was done of it, or happened to it. One that was to be put away may stay:
  // `loaded`.
  void loaded(size_t model);
  void unloaded(size_t model);
  // It could not be loaded: whoever waits for it is told so and leaves.
  void failed(size_t model);

  State state(size_t model) const { return models_[model].state; }
  size_t waiting(size_t model) const { return models_[model].waiting; }
  size_t answering(size_t model) const { return models_[model].answering; }
  int64_t bytes(size_t model) const { return models_[model].bytes; }
  const Limits& limits() const { return limits_; }
  int64_t bytes_taken() const;
  size_t size() const { return models_.size(); }
  // The one that was asked for last among those that are loaded; size() where none is.
  size_t last_used() const;

 private:
  struct Model {
    int64_t bytes = 0;
    State state = State::unloaded;
    bool leaves = false;  // as soon as it answers nothing
    bool held = false;
    size_t waiting = 0, answering = 0;
    size_t given_up = 0;  // of those that wait: they are about to leave
    size_t owed = 0;      // of those that waited when it was loaded: they begin, even if it leaves
    int64_t asked = 0, used = 0;  // by the clock: the first that waits, the last that began
  };
  size_t longest_waiting() const;
  bool has_room(int64_t bytes, int64_t taken, size_t models) const;
  void let_leave_for(size_t wanted);
  size_t least_recent(bool idle) const;

  std::vector<Model> models_;
  Limits limits_;
  int64_t clock_ = 0;
};

}  // namespace invar::server
