// Which numbers a decoder can have.
#include <algorithm>

#include "base/error.h"
#include "kernels/layout.h"
#include "kernels/recurrent.h"
#include "model/families/families.h"
#include "model/families/family.h"

namespace invar {

namespace {

// Each kind of part, of whose model's sizes some must fit it.
void check_part(const ExpertsSpec& experts, const DecoderSpec&, std::string_view where) {
  const Routing& how = experts.routing;
  const auto check = [&](std::string_view what, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
      fail("{}: expected {} from {} to {}, found {}", where, what, low, high, value);
  };
  check("a number of experts", how.experts, 1, Routing::kMaxExperts);
  check("a number of experts of a token", how.chosen, 1,
        std::min(how.experts, Routing::kMaxChosen));
  check("an expert's intermediate size", experts.width, 1, kMaxWidth);
  check("a latent vector of experts", experts.latent, 0, kMaxWidth);
  if (experts.latent > 0 &&
      (experts.is_beside || experts.has_biases || experts.weighs_inputs || experts.shared_gate))
    fail(
        "{}: expected experts without biases and a shared one without a gate where they read a "
        "latent vector",
        where);
  check("a shared expert's intermediate size", experts.shared_width, 0, kMaxWidth);
  check("a number of groups of experts", how.groups, 1, how.experts);
  check("a number of groups to choose from", how.chosen_groups, 1, how.groups);
  if (how.experts % how.groups != 0 || how.experts / how.groups * how.chosen_groups < how.chosen)
    fail("{}: expected {} experts of a token out of {} of {} equal groups of {} experts", where,
         how.chosen, how.chosen_groups, how.groups, how.experts);
}

void check_indexer(const IndexerSpec& indexer, const LatentSpec& latent, std::string_view where) {
  const auto check = [&](std::string_view what, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
      fail("{}: expected {} from {} to {}, found {}", where, what, low, high, value);
  };
  check("a number of an indexer's heads", indexer.heads, 1, kMaxHeads);
  check("a size of an indexer's heads", indexer.size, latent.rope, kMostIndexDim);
  check("a number of positions that an indexer chooses", indexer.most, 1, kMaxPositions);
  if (indexer.size % 32 != 0 || latent.query_rank == 0)
    fail(
        "{}: expected an indexer's heads of whole thirty-twos beside queries of a vector of their "
        "own (q_lora_rank), found {} and {}",
        where, indexer.size, latent.query_rank);
}

void check_latent(const LatentSpec& latent, const DecoderSpec& spec, std::string_view where) {
  if (latent.rank < 32 || latent.rank % 32 != 0 || latent.nope < 32 || latent.nope % 32 != 0)
    fail(
        "{}: expected a latent and the still part of a query of whole thirty-twos, found {} and {}",
        where, latent.rank, latent.nope);
  if (latent.rope < 2 || latent.rope % 4 != 0 || latent.rope > latent.rank)
    fail("{}: expected a number of turning elements that 4 divides, up to {}, found {}", where,
         latent.rank, latent.rope);
  if (spec.kv_heads != 1 || spec.head_dim != latent.rank + latent.rope || latent.value < 1)
    fail("{}: expected one key/value head of a latent and what turns beside it", where);
  if (latent.indexer) check_indexer(*latent.indexer, latent, where);
}

void check_part(const AttentionSpec& attention, const DecoderSpec& spec, std::string_view where) {
  if (attention.window < 0 || attention.window > kMaxPositions)
    fail("{}: expected a window from 0 to {}, found {}", where, kMaxPositions, attention.window);
  if (attention.chunk < 0 || attention.chunk > kMaxPositions)
    fail("{}: expected a chunk of attention from 0 to {} positions, found {}", where, kMaxPositions,
         attention.chunk);
  if (attention.sees_ahead && (attention.latent || attention.chunk > 0 || spec.mtp_layers > 0))
    fail("{}: expected attention in both directions without latents, chunks and prediction modules",
         where);
  const bool is_plain = !attention.latent && !spec.joint_qk_norm && !spec.qk_norm;
  if ((attention.has_unit_heads || attention.growth) && !is_plain)
    fail(
        "{}: expected plain queries and keys where their heads have a norm without weights or grow",
        where);
  if (attention.growth && (attention.rope || !(attention.growth->step >= 1)))
    fail(
        "{}: expected queries that grow every 1 or more positions in a layer without a rotation, "
        "found a step of {}",
        where, attention.growth->step);
  const int kv_heads = spec.kv_heads_of(attention);
  if (kv_heads < 1 || spec.heads % kv_heads)
    fail("{}: expected the key/value heads to divide the heads, found {} and {}", where, kv_heads,
         spec.heads);
  const int size = spec.head_dim_of(attention);
  if (attention.head_dim != 0 && (size < 8 || size > kMaxLayerHeadDim || size % 2))
    fail("{}: expected an even head size of a layer from 8 to {}, found {}", where,
         kMaxLayerHeadDim, size);
  if ((attention.head_dim != 0 || attention.has_value_norm || attention.keys_are_values ||
       attention.shares_keys) &&
      (attention.latent || attention.has_unit_heads || attention.has_output_gate ||
       spec.joint_qk_norm || attention.value_dim != 0 || attention.value_scale != 1))
    fail(
        "{}: expected plain attention where heads have a size of their layer, values are normed or "
        "keys, or keys are shared",
        where);
  const int values = attention.value_dim;
  if (values < 0 || values > spec.head_dim || (values > 0 && attention.latent))
    fail("{}: expected values of 1 to {} elements, found {}", where, spec.head_dim, values);
  if (values != 0 && values != spec.head_dim && attention.has_output_gate)
    fail("{}: expected no output gate where values are narrower than keys", where);
  if (values != 0 && values != spec.head_dim && spec.heads * values % 32 != 0)
    fail(
        "{}: expected values of all heads, narrower than keys, of whole thirty-twos, found {} of "
        "{}",
        where, spec.heads, values);
  const AttentionSpec& first = *spec.first<AttentionSpec>();
  if (values != first.value_dim)
    fail("{}: expected values of as many elements in all layers, found {} and {}", where,
         first.value_dim, values);
  if (attention.latent) check_latent(*attention.latent, spec, where);
  if (is_after(attention.norms) && spec.o_bias)
    fail("{}: expected no bias of a product that a norm follows", where);
}

void check_part(const DenseFfnSpec& ffn, const DecoderSpec& spec, std::string_view where) {
  if (ffn.width < 1 || ffn.width > kMaxWidth)
    fail("{}: expected an intermediate size from 1 to {}, found {}", where, kMaxWidth, ffn.width);
  if (is_after(ffn.norms) && spec.mlp_bias)
    fail("{}: expected no bias of a product that a norm follows", where);
}

void check_part(const LayerEndSpec& end, const DecoderSpec& spec, std::string_view where) {
  if (end.input_width < 0 || end.input_width > kMaxWidth)
    fail("{}: expected what a token brings to a layer of 0 to {} numbers, found {}", where,
         kMaxWidth, end.input_width);
  if (end.input_width != spec.layer_input_width())
    fail("{}: expected as much brought to every layer, found {} and {}", where,
         spec.layer_input_width(), end.input_width);
}

// Two networks beside each other have norms on both sides.
void check_networks(const LayerSpec& layer, std::string_view where) {
  const ExpertsSpec* experts = layer.experts();
  if (!experts || !experts->is_beside) return;
  if (!layer.ffn() || layer.ffn()->norms != NormPlace::both || experts->shared_width > 0 ||
      !experts->is_gated || experts->has_biases || experts->weighs_inputs)
    fail(
        "{}: expected gated experts without biases or a shared one beside a dense network with "
        "norms on both sides",
        where);
}

// Layers that read another one's keys and values read those of the same shape.
void check_shared_keys(const DecoderSpec& spec, std::string_view where) {
  for (int i = 0; i < spec.layers; ++i) {
    const int source = spec.kv_layer(i);
    if (source == i) continue;
    if (source < 0)
      fail("{}: expected a layer before layer {} whose keys and values it can share, found none",
           where, i);
    const AttentionSpec &own = *spec.layer_specs[static_cast<size_t>(i)].attention(),
                        &of = *spec.layer_specs[static_cast<size_t>(source)].attention();
    if (spec.head_dim_of(own) != spec.head_dim_of(of) ||
        spec.kv_heads_of(own) != spec.kv_heads_of(of) || own.window != of.window)
      fail("{}: expected layer {} to attend as layer {}, whose keys and values it shares", where, i,
           source);
  }
}

// The first of the layers with an indexer has one of its own, and all choose as many positions.
void check_indexers(const DecoderSpec& spec, std::string_view where) {
  const IndexerSpec* first = nullptr;
  for (const LayerSpec& layer : spec.layer_specs) {
    const IndexerSpec* indexer = layer.indexer();
    if (!indexer) continue;
    if (!first && indexer->is_shared)
      fail("{}: expected a layer with an indexer before those that share its choice, found none",
           where);
    if (!first) first = indexer;
    if (indexer->most != first->most)
      fail("{}: expected indexers that choose as many positions in all layers, found {} and {}",
           where, first->most, indexer->most);
  }
}

void check_part(const JoinSpec&, const DecoderSpec&, std::string_view) {}
void check_part(const ResidualBlockSpec&, const DecoderSpec&, std::string_view) {}

void check_part(const RecurrentSpec& recurrent, const DecoderSpec&, std::string_view where) {
  const auto check = [&](std::string_view what, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
      fail("{}: expected {} from {} to {}, found {}", where, what, low, high, value);
  };
  check("a number of recurrent value heads", recurrent.heads, 1, kMaxHeads);
  check("a number of recurrent key heads", recurrent.key_heads, 1, recurrent.heads);
  check("a size of recurrent keys", recurrent.key_size, 1, kMostStateSize);
  check("a size of recurrent values", recurrent.value_size, 1, kMostStateSize);
  check("a number of taps of a short convolution", recurrent.taps, 2, kMostTaps);
  if (recurrent.heads % recurrent.key_heads)
    fail("{}: expected the recurrent key heads to divide the value heads, found {} and {}", where,
         recurrent.key_heads, recurrent.heads);
}

void check_part(const ChannelDeltaSpec& delta, const DecoderSpec& spec, std::string_view where) {
  check_part(RecurrentSpec{.key_heads = delta.heads,
                           .heads = delta.heads,
                           .key_size = delta.size,
                           .value_size = delta.size,
                           .taps = delta.taps},
             spec, where);
}

void check_part(const ShortConvSpec& conv, const DecoderSpec&, std::string_view where) {
  if (conv.taps < 2 || conv.taps > kMostTaps)
    fail("{}: expected a number of taps of a short convolution from 2 to {}, found {}", where,
         kMostTaps, conv.taps);
}

void check_part(const StateSpaceSpec& s, const DecoderSpec& spec, std::string_view where) {
  check_part(RecurrentSpec{.key_heads = s.groups,
                           .heads = s.heads,
                           .key_size = s.state_size,
                           .value_size = s.head_size,
                           .taps = s.taps},
             spec, where);
  if (s.norm_groups < 0 || (s.norm_groups > 1 && s.norm_groups != s.groups))
    fail("{}: expected the norm of a state space to have 1 group or the {} of its keys, found {}",
         where, s.groups, s.norm_groups);
  if (!(s.least_step >= 0 && s.most_step > s.least_step))
    fail("{}: expected limits of a state space's steps from 0 on, found {} and {}", where,
         s.least_step, s.most_step);
}

}  // namespace

void check_spec(const DecoderSpec& spec, std::string_view where) {
  const auto check = [&](std::string_view what, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
      fail("{}: expected {} from {} to {}, found {}", where, what, low, high, value);
  };
  check("a hidden size", spec.hidden, 1, kMaxWidth);
  check("a number of layers", spec.layers, 1, kMaxLayers);
  check("a number of modules that predict further", spec.mtp_layers, 0, 1);
  const bool reads_hidden = spec.mtp_layers > 0 || (!spec.layer_specs.empty() &&
                                                    features_of(spec.layer(0), spec.hidden) > 0);
  if (reads_hidden && spec.hidden % 32)
    fail("{}: expected a hidden size that is a multiple of 32 {}, found {}", where,
         spec.mtp_layers > 0 ? "beside a module of multi-token prediction"
                             : "of a drafter that reads the target's hidden states",
         spec.hidden);
  check("a number of heads", spec.heads, 1, kMaxHeads);
  check("a number of key/value heads", spec.kv_heads, 1, spec.heads);
  const AttentionSpec* first = spec.first<AttentionSpec>();
  const bool is_latent = first && first->latent;
  check("a head size", spec.head_dim, 8, is_latent ? kMaxHeadDim : 256);
  check("a vocabulary size", spec.vocab, 1, kMaxVocab);
  check("a number of positions", spec.max_positions, 1, kMaxPositions);
  if (std::ssize(spec.layer_specs) != spec.layers)
    fail("{}: expected the parts of each of {} layers, found {}", where, spec.layers,
         spec.layer_specs.size());
  for (const LayerSpec& layer : spec.layer_specs) {
    if (layer.parts.empty()) fail("{}: expected a part in every layer, found none", where);
    if (!std::ranges::is_sorted(layer.parts, std::ranges::less_equal{}, role_of))
      fail("{}: expected at most one part of each role in a layer, in the order of roles", where);
    check_networks(layer, where);
    for (const PartSpec& part : layer.parts)
      std::visit([&](const auto& own) { check_part(own, spec, where); }, part);
  }
  check_shared_keys(spec, where);
  check_indexers(spec, where);
  if (spec.heads % spec.kv_heads)
    fail("{}: expected the key/value heads to divide the heads, found {} and {}", where,
         spec.kv_heads, spec.heads);
  if (spec.head_dim % 2) fail("{}: expected an even head size, found {}", where, spec.head_dim);
  if (!(spec.norm_eps > 0))
    fail("{}: expected a norm epsilon above 0, found {}", where, spec.norm_eps);
}

}  // namespace invar
