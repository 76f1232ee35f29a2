// The axes of an audit: each is a list of schedules under which the same requests are answered.
#pragma once

#include <string>
#include <vector>

#include "audit_runs.h"

namespace invar::cli {

struct Axis {
  std::string name;
  std::vector<Schedule> schedules;
  // Whether a conventional engine's bits depend on this axis. Where they do not, each schedule has
  // a foil: control that cuts its products as that schedule's place on the axis says.
  bool control_differs;
  // The runs of an axis must have seen these, else the axis has tried nothing.
  bool expects_cached = false, expects_preempted = false;
  int expects_live = 0;
  bool expects_drafts = false;  // that were accepted
  bool expects_ahead = false;   // steps begun before the one before had ended
  // Answers depend on what is varied, and the model's identity says so: the same bits everywhere
  // would mean that the comparison cannot see it.
  bool promises_nothing = false;
};

// Adds a schedule like `base` under a label at the end of the axis.
Schedule& vary(Axis& axis, const Schedule& base, std::string label);

// `full`: more schedules on each.
std::vector<Axis> make_axes(bool full, const Schedule& base, const DecoderSpec& spec);

}  // namespace invar::cli
