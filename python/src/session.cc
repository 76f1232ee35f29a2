// Session of include/invar/invar.h in Python.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "base/fields.h"
#include "dlpack.h"
#include "module.h"
#include "session_handle.h"

namespace invar::python {

namespace {

using Tokens = std::vector<int32_t>;

// The numbers as an array that owns them, without a copy.
py::array_t<float> array_of(std::vector<float> numbers, std::vector<py::ssize_t> shape) {
  auto* kept = new std::vector<float>(std::move(numbers));
  const py::capsule owner(kept, [](void* p) { delete static_cast<std::vector<float>*>(p); });
  return py::array_t<float>(std::move(shape), kept->data(), owner);
}

template <typename T, size_t i>
void bind_field(py::class_<T>& bound, bool writable) {
  using Value = std::remove_cvref_t<std::tuple_element_t<i, fields::Tuple<T>>>;
  const std::string name(fields::names<T>()[i]);
  const auto get = [](const T& of) -> const Value& { return std::get<i>(fields_of(of)); };
  const auto set = [](T& of, Value value) { std::get<i>(fields_of(of)) = std::move(value); };
  writable ? bound.def_property(name.c_str(), get, set)
           : bound.def_property_readonly(name.c_str(), get);
}

// The struct with its fields, by their names.
template <typename T>
py::class_<T> bind_fields(py::module_& m, const char* name, bool writable) {
  py::class_<T> bound(m, name);
  [&]<size_t... i>(std::index_sequence<i...>) {
    (bind_field<T, i>(bound, writable), ...);
  }(std::make_index_sequence<fields::count<T>()>());
  return bound;
}

void bind_structs(py::module_& m) {
  bind_fields<SessionOptions>(m, "SessionOptions", true).def(py::init<>());
  bind_fields<GenerateOptions>(m, "GenerateOptions", true)
      .def(py::init<>())
      .def(py::init<const GenerateOptions&>());
  bind_fields<invar::Logprob>(m, "RankedLogprob", false);
  bind_fields<GeneratedToken>(m, "GeneratedToken", false);
  bind_fields<Generation>(m, "Generation", false);
  bind_fields<Update>(m, "Update", false);
}

std::vector<Generation> generate(SessionHandle& handle, const std::vector<Tokens>& prompts,
                                 const std::vector<GenerateOptions>& options,
                                 const py::object& progress) {
  if (prompts.size() != options.size())
    fail_usage("expected options for each of {} prompts, found {}", prompts.size(), options.size());
  std::vector<Query> queries;
  for (size_t i = 0; i < prompts.size(); ++i) queries.push_back({prompts[i], options[i]});
  return handle.call([&](Session& session) {
    return session.generate(std::span<const Query>(queries), Watch(progress));
  });
}

py::array_t<float> embed(SessionHandle& handle, const std::vector<Tokens>& prompts,
                         const py::object& progress) {
  std::vector<float> all;
  py::ssize_t width = 0;
  handle.call([&](Session& session) {
    width = session.hidden_size();
    for (const auto& vector : session.embed(prompts, Watch(progress)))
      all.insert(all.end(), vector.begin(), vector.end());
  });
  return array_of(std::move(all), {static_cast<py::ssize_t>(prompts.size()), width});
}

std::string ask(SessionHandle& handle, const std::string& endpoint, const std::string& body,
                const py::object& progress) {
  return handle.call(
      [&](Session& session) { return session.ask(endpoint, body, Watch(progress)); });
}

py::tuple inspect(SessionHandle& handle, const Tokens& tokens, const Tokens& positions,
                  const Tokens& layers) {
  py::ssize_t vocab = 0, hidden = 0;
  Inspection found = handle.call([&](Session& session) {
    vocab = session.vocabulary_size();
    hidden = session.hidden_size();
    return session.inspect(tokens, positions, layers);
  });
  const auto count = static_cast<py::ssize_t>(positions.size());
  return py::make_tuple(
      array_of(std::move(found.logits), {count, vocab}),
      array_of(std::move(found.hidden), {static_cast<py::ssize_t>(layers.size()), count, hidden}));
}

void update_weights(SessionHandle& handle,
                    const std::vector<std::pair<std::string, py::object>>& named) {
  std::vector<BorrowedTensor> borrowed;
  std::vector<Tensor> tensors;
  const int gpu = handle.call([](Session& session) { return session.gpu(); });
  for (const auto& [name, object] : named) {
    const BorrowedTensor& one =
        borrowed.emplace_back(object, "update_weights: \"" + name + "\"", gpu);
    // numpy has no bf16: its bits come as uint16.
    tensors.push_back({.name = name,
                       .dtype = one.dtype() == "U16" ? "BF16" : one.dtype(),
                       .shape = one.shape(),
                       .data = one.data(),
                       .gpu = one.gpu()});
  }
  handle.call([&](Session& session) { session.update_weights(tensors); });
}

std::vector<std::tuple<std::string, std::string, std::vector<int64_t>>> tensors(
    SessionHandle& handle) {
  std::vector<std::tuple<std::string, std::string, std::vector<int64_t>>> all;
  for (Tensor& one : handle.call([](Session& session) { return session.tensors(); }))
    all.emplace_back(std::move(one.name), std::move(one.dtype), std::move(one.shape));
  return all;
}

// A tensor as an array; bf16 as uint16, its bits.
py::array tensor(SessionHandle& handle, const std::string& name) {
  Tensor found;
  auto* bytes = new std::vector<std::byte>(handle.call([&](Session& session) {
    for (Tensor& one : session.tensors())
      if (one.name == name) found = std::move(one);
    return session.tensor_bytes(name);
  }));
  const py::capsule owner(bytes, [](void* p) { delete static_cast<std::vector<std::byte>*>(p); });
  const char* type = found.dtype == "F32" ? "f4" : found.dtype == "F16" ? "f2" : "u2";
  // Strides are said: pybind11 2.10 does not find the size of an element in numpy 2.
  std::vector<py::ssize_t> strides(found.shape.size(), found.dtype == "F32" ? 4 : 2);
  for (size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * found.shape[i];
  return py::array(py::dtype(type), found.shape, strides, bytes->data(), owner);
}

// A method without arguments of its own.
template <auto method>
auto plain(SessionHandle& handle) {
  return handle.call([](Session& session) { return (session.*method)(); });
}

void bind_texts(py::class_<SessionHandle>& session) {
  session
      .def("tokenize",
           [](SessionHandle& handle, const std::string& text, bool special) {
             return handle.call([&](Session& s) { return s.tokenize(text, special); });
           })
      .def("detokenize",
           [](SessionHandle& handle, const Tokens& tokens, bool skip) {
             return handle.call([&](Session& s) { return s.detokenize(tokens, skip); });
           })
      .def("render_chat",
           [](SessionHandle& handle, const std::string& conversation) {
             return handle.call([&](Session& s) { return s.render_chat(conversation); });
           })
      .def("token_text",
           [](SessionHandle& handle, int32_t token) {
             return py::bytes(handle.call([&](Session& s) { return s.token_text(token); }));
           })
      .def("token_id",
           [](SessionHandle& handle, const std::string& text) {
             return handle.call([&](Session& s) { return s.token_id(text); });
           })
      .def("bos_token", plain<&Session::bos_token>)
      .def("eos_token", plain<&Session::eos_token>);
}

}  // namespace

void bind_session(py::module_& m) {
  bind_structs(m);
  py::class_<SessionHandle> session(m, "Session");
  session.def(py::init<const SessionOptions&>(), py::call_guard<py::gil_scoped_release>())
      .def("close", &SessionHandle::close)
      .def("identity", plain<&Session::identity>)
      .def("vocabulary_size", plain<&Session::vocabulary_size>)
      .def("hidden_size", plain<&Session::hidden_size>)
      .def("layers", plain<&Session::layers>)
      .def("max_model_len", plain<&Session::max_model_len>)
      .def("generate", generate)
      .def("add",
           [](SessionHandle& handle, const Tokens& prompt, const GenerateOptions& options) {
             return handle.call(
                 [&](Session& s) { return s.add(std::span<const int32_t>(prompt), options); });
           })
      .def("step", plain<&Session::step>)
      .def("cancel", [](SessionHandle& handle,
                        int64_t id) { handle.call([&](Session& s) { s.cancel(id); }); })
      .def("has_work", plain<&Session::has_work>)
      .def("embed", embed)
      .def("ask", ask)
      .def("inspect", inspect)
      .def("update_weights", update_weights)
      .def("load_weights",
           [](SessionHandle& handle, const std::string& directory) {
             handle.call([&](Session& s) { s.load_weights(directory); });
           })
      .def("tensors", tensors)
      .def("tensor", tensor)
      .def("gpu", plain<&Session::gpu>)
      .def("weights_digest", plain<&Session::weights_digest>)
      .def("reset_prefix_cache", plain<&Session::reset_prefix_cache>)
      .def("sleep", [](SessionHandle& handle,
                       int level) { handle.call([&](Session& s) { s.sleep(level); }); })
      .def("wake_up",
           [](SessionHandle& handle, const std::vector<std::string>& tags) {
             handle.call([&](Session& s) { s.wake_up(tags); });
           })
      .def("is_sleeping", plain<&Session::is_sleeping>);
  bind_texts(session);
}

}  // namespace invar::python
