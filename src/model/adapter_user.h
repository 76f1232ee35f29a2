// The users of adapters (numerics 2.4): each has its matrices that can have one.
#pragma once

namespace invar {

enum class AdapterUser { cpu, gpu, trainer };

}  // namespace invar
