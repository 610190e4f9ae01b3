{{- define "skiway.name" -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "skiway.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "skiway.environment" -}}
- name: SKIWAY_HOME
  value: /var/lib/skiway/home
- name: SKIWAY__SERVER__GRPC__ADDRESS
  value: 0.0.0.0:50051
- name: SKIWAY__SERVER__HTTP__ADDRESS
  value: 0.0.0.0:8181
{{- if .Values.plaintextInsideCluster }}
- name: SKIWAY__SERVER__GRPC__INSECURE
  value: "true"
- name: SKIWAY__SERVER__HTTP__INSECURE
  value: "true"
{{- end }}
{{- if .Values.worker.enabled }}
- name: SKIWAY__RECONCILER__BACKEND
  value: remote
{{- end }}
{{- end -}}

{{- define "skiway.pod" -}}
serviceAccountName: {{ include "skiway.name" . }}
terminationGracePeriodSeconds: 30
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
volumes:
  - name: home
    persistentVolumeClaim:
      claimName: {{ .Values.home.existingClaim | default (include "skiway.name" .) }}
  - name: settings
    configMap:
      name: {{ include "skiway.name" . }}
  - name: temporary
    emptyDir: {}
initContainers:
  # A volume belongs to root, so the home is a folder in it. Servers do not start without a tokens file.
  - name: home
    image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
    command: [sh, -c, "umask 077; mkdir -p /var/lib/skiway/home && touch /var/lib/skiway/home/tokens.toml"]
    {{- include "skiway.container" . | nindent 4 }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "skiway.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
env: {{- include "skiway.environment" . | nindent 2 }}
{{- with .Values.environmentSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
volumeMounts:
  - {name: home, mountPath: /var/lib/skiway}
  - {name: settings, mountPath: /etc/skiway, readOnly: true}
  - {name: temporary, mountPath: /tmp}
{{- end -}}
