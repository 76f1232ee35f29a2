# docker build -t invar . && docker run --rm -p 127.0.0.1:8000:8000 invar
FROM debian:12 AS build
COPY . /src
WORKDIR /src
RUN scripts/setup package && cmake --build --preset package && cd build/package && cpack

FROM debian:12
COPY --from=build /src/build/package/invar_*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/invar_*.deb && rm -rf /tmp/*.deb /var/lib/apt/lists/*
USER invar
WORKDIR /var/lib/invar
EXPOSE 8000
# Healthy once the model is loaded; by the shell alone, since the image has no client.
HEALTHCHECK --interval=30s --timeout=5s --start-period=2m --retries=3 CMD ["/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000 && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && read -r -t 4 line <&3 && [[ $line == *' 200 '* ]]"]
ENTRYPOINT ["/usr/bin/invar"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
