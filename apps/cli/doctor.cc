// invar doctor: what this machine will run.
#include <fmt/format.h>

#include <fstream>

#include "base/json.h"
#include "command.h"
#include "device/cuda_device.h"
#include "device/device.h"
#include "kernels/select.h"

namespace invar::cli {

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

namespace {

int run_doctor(bool as_json) {
  const auto cores = ThreadPool::usable_cores();
  const size_t memory = make_host_device()->available_bytes();
  const Kernels best = select_kernels(Order::portable, "auto");
  json::Value report;
  report.set("processor", processor_name());
  report.set("cores", static_cast<int64_t>(cores.size()));
  report.set("available_memory_bytes", static_cast<int64_t>(memory));
  json::Array sets;
  for (const std::string& name : instruction_sets()) {
    json::Value set;
    set.set("name", name);
    set.set("supported", is_supported(name));
    sets.push_back(std::move(set));
  }
  report.set("instruction_sets", std::move(sets));
  report.set("chosen", best.name);
  json::Array gpus;
  for (int i = 0; i < cuda_device_count(); ++i) {
    json::Value gpu;
    gpu.set("name", describe_cuda_device(i));
    gpu.set("supported", cuda_device_is_usable(i));
    gpus.push_back(std::move(gpu));
  }
  report.set("gpus", std::move(gpus));
  if (as_json) {
    fmt::print("{}\n", json::dump(report, 2));
    return 0;
  }
  fmt::print("processor         {}\n", processor_name());
  fmt::print("cores             {}\n", cores.size());
  fmt::print("memory available  {:.1f} GiB\n", static_cast<double>(memory) / (1 << 30));
  fmt::print("instruction sets ");
  for (const std::string& name : instruction_sets())
    fmt::print(" {}{}", name, is_supported(name) ? "" : " (not on this processor)");
  fmt::print("\n");
  for (int i = 0; i < cuda_device_count(); ++i)
    fmt::print("cuda:{}            {}{}\n", i, describe_cuda_device(i),
               cuda_device_is_usable(i) ? "" : " (not a GPU of this build)");
  fmt::print("will run          portable, hopper and pair arithmetic, kernels for {}\n", best.name);
  return 0;
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("doctor", "Show what this machine can run");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([&action, json] { action = [json] { return run_doctor(*json); }; });
}

}  // namespace invar::cli
