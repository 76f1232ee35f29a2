// Models by the names that a hub has for them, and where they lie on this machine: in the cache
// that Python's tools (huggingface_hub) share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace invar {

// "OWNER/NAME", of a repository with GGUF files "OWNER/NAME:QUANT" or "OWNER/NAME:FILE.gguf", and
// either with "@REVISION".
struct HubName {
  std::string repository, file, revision = "main";
};
// Nothing for what is no such name, such as a path that is there.
std::optional<HubName> hub_name(std::string_view word);

// $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else that of ~/.cache.
std::string hub_cache();
// "models--OWNER--NAME" of that.
std::string hub_folder(const std::string& repository);
// The directory of the repository's revision, or nothing.
std::optional<std::string> hub_snapshot(const HubName& name);

// Whether a GGUF file is the one that is meant: it has the name, or the quantisation in it, as
// llama.cpp reads it; the first one of a model in parts. Any file is meant where no name is asked
// for.
bool is_meant(std::string_view gguf_file, std::string_view asked);

// The path of a model by the word that names it: a name of the hub's is where its files lie, any
// other word stays as it is. Throws UsageError, with the command that fetches it, where it is not
// there.
std::string found_model(const std::string& word);

}  // namespace invar
