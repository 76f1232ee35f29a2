// Acceptance by rejection (Leviathan et al., 2023; Chen et al., 2023): drafts are tried one after
// the other with coins of their own, and what is left of the target's distribution is sampled where
// none is taken. Answers then follow the same distribution as without drafts, but which answer
// comes depends on the drafts: it cannot be computed again from the request alone.
//
// Drafters propose their likeliest token (DraftRequest::wants_argmax): q is 1 there and 0
// elsewhere, so min(1, p / q) is p and the residual is p without the token, divided by what is
// left. A draft is therefore accepted with its probability p among what is left, and leaves p when
// it is not. That takes max(p) of the drafts of a drafter which is the target itself; its samples
// would be taken with the sum of p^2, which is less. Any drafter is right for it that knows nothing
// of the coins: `accept` and `residual` of numerics 6, which only this reads.
#pragma once

#include "sampling/sampler.h"
#include "speculative/draft_tree.h"

namespace invar {

// The token after `node` of the tree (-1: the root; null: there are no drafts), after `sampler` has
// processed the logits there. REQUIRES: some token is allowed; not greedy. Changes the processed
// row.
int32_t sample_by_rejection(Sampler& sampler, const SampleInput& input, const DraftTree* tree,
                            int32_t node);

}  // namespace invar
