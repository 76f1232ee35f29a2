// The proposer that a configuration names.
#pragma once

#include <memory>

#include "drafters/model_drafter.h"
#include "speculative/config.h"

namespace invar {

// How the target must be loaded for a configuration: what `options` say, and its module of
// multi-token prediction where that drafts, and how drafts are accepted.
ModelOptions with_drafter(ModelOptions options, const SpeculativeConfig& config);

// Null when the configuration is off. A drafter of its own is loaded from `config.model`, a
// directory of the target's vocabulary ("dummy:SEED": random weights of the target's shape), and
// runs where the target runs. Throws UsageError when the target and the drafter do not go together;
// Error when the drafter cannot be loaded.
std::unique_ptr<Proposer> make_proposer(const SpeculativeConfig& config, Model& target,
                                        const DrafterRoom& room, ThreadPool* threads = nullptr);

// The two parts of it: what proposes, and what chooses the drafts' lengths where the configuration
// says so.
std::unique_ptr<Proposer> make_drafter(const SpeculativeConfig& config, Model& target,
                                       const DrafterRoom& room, ThreadPool* threads = nullptr);
std::unique_ptr<Proposer> with_lengths(std::unique_ptr<Proposer> proposer,
                                       const SpeculativeConfig& config);

}  // namespace invar
