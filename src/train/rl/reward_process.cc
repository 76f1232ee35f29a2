#include "train/rl/reward_process.h"

#include <cmath>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"
#include "base/sha256.h"

namespace invar::rl {

RewardProcess::RewardProcess(const std::vector<std::string>& command)
    : process_(command, "the reward's program " + command.at(0), kSeconds) {}

Judgement RewardProcess::judge(const Spoken& spoken) {
  const json::Value said = process_.ask(json::Object{{"prompt", spoken.problem.prompt},
                                                     {"right", spoken.problem.right},
                                                     {"answer", spoken.answer},
                                                     {"ended", spoken.ended},
                                                     {"conversation", spoken.conversation},
                                                     {"turn", spoken.turn},
                                                     {"last", spoken.is_last}});
  const std::string& where = process_.name();
  const auto member = [&](const char* key) { return said.is_object() ? said.find(key) : nullptr; };
  if (const json::Value* value = member("reward");
      value && value->is_number() && std::isfinite(value->as_number()))
    return {.reward = value->as_number(), .message = {}};
  const json::Value *message = member("message"), *text = member("text"), *role = member("role");
  if (text && text->is_string()) return {.reward = {}, .message = text->as_string()};
  if (!message || !message->is_string() || (role && !role->is_string()))
    fail("{}: expected {{\"reward\": number}} or {{\"message\": text}}, found {}", where,
         json::excerpt(said));
  return {.reward = {},
          .message = fmt::format("{}\n<|im_start|>{}\n{}<|im_end|>\n<|im_start|>assistant\n",
                                 spoken.ended ? "" : "<|im_end|>",
                                 role ? role->as_string() : "user", message->as_string())};
}

namespace {

// FILE and NAME.
std::pair<std::string, std::string> parts_of(const std::string& function) {
  const size_t colon = function.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == function.size())
    fail_usage("expected a Python function as FILE:NAME, found {}", json::quoted(function));
  return {function.substr(0, colon), function.substr(colon + 1)};
}

}  // namespace

// The function's own prints go to the standard error.
std::vector<std::string> python_command(const std::string& function) {
  static constexpr const char* kCaller = R"(
import importlib.util, inspect, json, os, sys
path, name = sys.argv[1], sys.argv[2]
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
spec = importlib.util.spec_from_file_location("judge", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
judge = getattr(module, name)
takes = inspect.signature(judge).parameters
takes_all = any(p.kind is p.VAR_KEYWORD for p in takes.values())
for line in sys.stdin:
    said = judge(**{k: v for k, v in json.loads(line).items() if takes_all or k in takes})
    if not isinstance(said, dict):
        said = {"message": said} if isinstance(said, str) else {"reward": float(said)}
    print(json.dumps(said), file=out, flush=True)
)";
  const auto [file, name] = parts_of(function);
  return {"python3", "-c", kCaller, file, name};
}

std::string judge_of_python(const std::string& function) {
  const auto [file, name] = parts_of(function);
  const std::string text = read_whole_file(file);
  return fmt::format("python {} {}", name, to_hex(sha256(std::as_bytes(std::span(text)))));
}

}  // namespace invar::rl
