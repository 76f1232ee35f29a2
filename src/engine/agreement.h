// Workers in processes of their own hear of a step one by one; before they compute it they compare
// what they heard.
#pragma once

#include <string_view>

#include "engine/runner.h"

namespace invar {

// Every worker calls it with the bytes of a step's message. Workers that find that another one got
// other bytes throw Error, naming its rank, stage and host.
void expect_agreement(const WorkerPlace& place, const WorkerLinks& links, std::string_view message);

}  // namespace invar
