// An account of the time that drafting may cost beside plain decoding, in seconds that are earned
// as steps go by.
//
// There are two purses. The trial purse pays for drafts that are made to find something out. The
// balance is what the drafts that were thought to pay have brought: where it is overdrawn they did
// not, and there are none until the share of the time that both purses earn has paid the debt. So a
// drafter costs that share of the time at most, and a few plain steps whenever what pays has
// changed, whatever the estimates said.
#pragma once

#include <algorithm>

namespace invar {

class DraftAccount {
 public:
  static constexpr double kShare = 0.005;    // of the time, earned by each purse
  static constexpr double kMostTrials = 4;   // plain steps that the trial purse holds
  static constexpr double kMostBalance = 2;  // plain steps that the balance may be above or below 0

  // A step has taken so long, drafting included.
  void earn(double seconds) {
    trials_ += kShare * seconds;
    balance_ += kShare * seconds;
  }
  void pay_trial(double seconds) { trials_ -= seconds; }
  // Books the seconds that drafts have brought, less those that they cost.
  void book(double seconds) { balance_ += seconds; }
  // After a step: `plain` is what one takes without drafts.
  void close_step(double plain) {
    trials_ = std::min(trials_, kMostTrials * plain);
    balance_ = std::clamp(balance_, -kMostBalance * plain, kMostBalance * plain);
    if (balance_ <= -kMostBalance * plain) is_overdrawn_ = true;
    if (balance_ >= 0) is_overdrawn_ = false;
  }

  double trials() const { return trials_; }
  bool is_overdrawn() const { return is_overdrawn_; }

 private:
  double trials_ = 0, balance_ = 0;
  bool is_overdrawn_ = false;
};

}  // namespace invar
